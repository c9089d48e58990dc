/* Who may use a server: names, pages of browsers, keys, directories. */
#include "serve/access.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/secret.h"
#include "serve/weight_path.h"
#include "tests/support/router_fixture.h"
#include "tests/support/scratch.h"
#include "tests/support/serve_fixture.h"
#include "tests/support/test.h"

static ml_serve_fixture f;
static const char *body;

/* --- names and pages ------------------------------------------------------------------ */

/* What a request's lines give, from a server on 127.0.0.1. */
static int ask(ml_access_opts o, const char *method, const char *path, const char *headers,
               const char *json) {
    int status;

    ml_serve_fixture_init(&f);
    f.opts.access = o;
    ml_serve_fixture_start(&f);
    status = ml_serve_ask(&f, method, path, headers, json, &body);
    ml_serve_fixture_stop(&f);
    return status;
}

static void names_in_host(void) {
    static const char *const extra[] = { "engine.example", "other:8" };
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        { "localhost", 200 },
        { "LOCALHOST:30000", 200 },
        { "127.0.0.1", 200 },
        { "127.3.2.1:1", 200 },
        { "[::1]:30000", 200 },
        { "[::1]", 200 },
        { "engine.example", 200 },
        { "Engine.example:99", 200 },
        { "other:8", 200 },
        { "other:9", 403 },
        { "evil.example", 403 },
        { "localhost.evil.example", 403 },
        { "evil.example:30000", 403 },
        { "127.0.0.1.evil.example", 403 },
        { "127.0.0.1:x", 403 },
        { "127.1", 403 },
        { "0.0.0.0", 403 },
        { "10.0.0.1", 403 },
        { "[::2]", 403 },
        { "[::1", 403 },
        { "localhost@evil.example", 403 },
        { "", 403 },
    };
    ml_access_opts o = { .allowed_host = extra, .n_host = 2 };
    char host[80];

    ml_serve_fixture_init(&f);
    f.opts.access = o;
    f.host = host;
    ml_serve_fixture_start(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(host, sizeof host, "%s", cases[i].host);
        int got = ml_serve_ask(&f, "GET", "/health", NULL, NULL, &body);
        if (got != cases[i].status)
            ml_test_fail(__FILE__, __LINE__, "%s: %d %s", host, got, body);
    }
    CHECK_HAS(body, "--allowed-hosts");
    ml_serve_fixture_stop(&f);
}

static const struct {
    const char *method, *path, *headers;
    int status;
} page_cases[] = {
    /* other sites, whatever they ask for */
    { "POST", "/generate", "Origin: https://evil.example\r\n", 403 },
    { "POST", "/generate", "Origin: null\r\n", 403 },
    { "POST", "/pause_generation", "Origin: http://localhost:8000\r\n", 403 },
    { "POST", "/pause_generation", "Sec-Fetch-Site: cross-site\r\n", 403 },
    { "POST", "/pause_generation", "Sec-Fetch-Site: same-site\r\n", 403 },
    { "GET", "/health", "sec-fetch-site: Cross-Site\r\n", 403 },
    { "GET", "/flush_cache", "Sec-Fetch-Site: cross-site\r\n", 403 },
    { "GET", "/metrics", "Origin: https://evil.example\r\n", 403 },
    { "GET", "/health", "Origin: https://app.example.evil.example\r\n", 403 },
    /* a page of the server itself, or an address that somebody typed */
    { "GET", "/model_info", "Origin: http://localhost\r\n", 200 },
    { "GET", "/model_info", "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n", 200 },
    { "GET", "/flush_cache", "Sec-Fetch-Site: none\r\n", 403 },
    { "GET", "/flush_cache", "Sec-Fetch-Mode: navigate\r\n", 403 },
    { "GET", "/release_memory_occupation", "Referer: http://localhost/x\r\n", 403 },
    { "HEAD", "/flush_cache", "Sec-Fetch-Site: same-origin\r\n", 403 },
    /* clients that are no browsers, and pages that are allowed */
    { "GET", "/flush_cache", "User-Agent: python\r\n", 200 },
    { "GET", "/release_memory_occupation", "X: y\r\n", 200 },
    { "POST", "/resume_memory_occupation", "X: y\r\n", 200 },
    { "GET", "/model_info", "Origin: https://app.example\r\nSec-Fetch-Site: cross-site\r\n",
      200 },
    { "POST", "/flush_cache",
      "Origin: https://App.example\r\nSec-Fetch-Site: cross-site\r\n", 200 },
};

static void pages_of_browsers(void) {
    static const char *const origins[] = { "https://app.example" };

    ml_serve_fixture_init(&f);
    f.opts.access = (ml_access_opts){ .allowed_origin = origins, .n_origin = 1 };
    ml_serve_fixture_start(&f);
    for (size_t i = 0; i < sizeof page_cases / sizeof *page_cases; i++) {
        int got = ml_serve_ask(&f, page_cases[i].method, page_cases[i].path,
                               page_cases[i].headers, NULL, &body);
        if (got != page_cases[i].status)
            ml_test_fail(__FILE__, __LINE__, "%s %s: %d %s", page_cases[i].path,
                         page_cases[i].headers, got, body);
        CHECK((strstr(body, "Access-Control-Allow-Origin: https://") != NULL) ==
              (i >= sizeof page_cases / sizeof *page_cases - 2));
    }
    CHECK(f.n_pause == 0);
    ml_serve_fixture_stop(&f);
}

static void pages_ask_before(void) {
    static const char *const origins[] = { "https://app.example" };

    ml_serve_fixture_init(&f);
    f.opts.access = (ml_access_opts){ .allowed_origin = origins, .n_origin = 1 };
    ml_serve_fixture_start(&f);
    CHECK(ml_serve_ask(&f, "OPTIONS", "/generate",
                       "Origin: https://app.example\r\nAccess-Control-Request-Method: "
                       "POST\r\nAccess-Control-Request-Headers: content-type\r\n"
                       "Access-Control-Request-Private-Network: true\r\n",
                       NULL, &body) == 204);
    CHECK_HAS(body, "Access-Control-Allow-Origin: https://app.example\r\n");
    CHECK_HAS(body, "Access-Control-Allow-Headers: content-type\r\n");
    CHECK_HAS(body, "Access-Control-Allow-Private-Network: true\r\n");
    CHECK_HAS(body, "Vary: Origin\r\n");
    CHECK(ml_serve_ask(&f, "OPTIONS", "/generate",
                       "Origin: https://evil.example\r\nAccess-Control-Request-Method: "
                       "POST\r\n",
                       NULL, &body) == 403);
    CHECK(!strstr(body, "Access-Control-Allow"));
    ml_serve_fixture_stop(&f);
}

static void administration_takes_json(void) {
    static const struct {
        const char *type;
        int status;
    } cases[] = {
        { "Content-Type: application/json\r\n", 200 },
        { "Content-Type: Application/JSON ; charset=utf-8\r\n", 200 },
        { "Content-Type: text/plain\r\n", 415 },
        { "Content-Type: application/x-www-form-urlencoded\r\n", 415 },
        { "Content-Type: multipart/form-data; boundary=x\r\n", 415 },
        { "Content-Type: application/jsonp\r\n", 415 },
        { "Content-Type:\r\n", 415 },
    };

    ml_serve_fixture_init(&f);
    ml_serve_fixture_start(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(ml_serve_ask(&f, "POST", "/continue_generation", cases[i].type, "{}", NULL) ==
              cases[i].status);
    CHECK(ml_serve_ask(&f, "POST", "/generate", "Content-Type: text/plain\r\n",
                       "{\"text\": \"a\"}", NULL) == 200);
    ml_serve_fixture_stop(&f);
}

/* --- keys ------------------------------------------------------------------------------ */

static void keys_by_class(void) {
    static const struct {
        const char *method, *path;
        int none, client, admin; /* status with no key, with each */
    } cases[] = {
        { "GET", "/health", 200, 200, 200 },
        { "GET", "/metrics", 401, 200, 200 },
        { "GET", "/v1/models/fake", 401, 200, 200 },
        { "GET", "/health_generate", 401, 200, 200 },
        { "POST", "/health", 401, 401, 405 },
        { "POST", "/metrics", 401, 401, 405 },
        { "GET", "/flush_cache", 401, 401, 200 },
        { "POST", "/pause_generation", 401, 401, 200 },
        { "POST", "/continue_generation", 401, 401, 200 },
        { "POST", "/abort_request", 401, 401, 400 },
        { "POST", "/pull_weights", 401, 401, 400 },
        { "POST", "/update_weights_from_disk", 401, 401, 400 },
        { "GET", "/nope", 401, 401, 404 },
        { "GET", "/%68ealth", 200, 200, 200 },
        { "GET", "//metrics", 401, 401, 404 },
    };

    ml_serve_fixture_init(&f);
    f.opts.access = (ml_access_opts){ .api_key = "client", .admin_key = "admin" };
    ml_serve_fixture_start(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *m = cases[i].method, *p = cases[i].path;
        int none = ml_serve_ask(&f, m, p, NULL, NULL, NULL);
        int client = ml_serve_ask(&f, m, p, "Authorization: Bearer client\r\n", NULL, NULL);
        int admin = ml_serve_ask(&f, m, p, "X-API-Key: admin\r\n", NULL, &body);
        if (none != cases[i].none || client != cases[i].client || admin != cases[i].admin)
            ml_test_fail(__FILE__, __LINE__, "%s: %d %d %d %s", p, none, client, admin,
                         body);
    }
    CHECK(ml_serve_ask(&f, "GET", "/flush_cache", "Authorization: bearer admi\r\n", NULL,
                       &body) == 401);
    CHECK_HAS(body, "--admin-api-key");
    CHECK_HAS(body, "WWW-Authenticate: Bearer\r\n");
    /* A browser with the key may, and a foreign page with it may not. */
    CHECK(ml_serve_ask(&f, "GET", "/flush_cache",
                       "Authorization: Bearer admin\r\nSec-Fetch-Site: none\r\n", NULL,
                       NULL) == 200);
    CHECK(ml_serve_ask(&f, "GET", "/flush_cache",
                       "Authorization: Bearer admin\r\nOrigin: http://evil.example\r\n",
                       NULL, NULL) == 403);
    ml_serve_fixture_stop(&f);
    /* As in SGLang: the admin's key alone leaves the rest open, and clients' is for both. */
    CHECK(ask((ml_access_opts){ .admin_key = "a" }, "GET", "/metrics", NULL, NULL) == 200);
    CHECK(ask((ml_access_opts){ .admin_key = "a" }, "GET", "/flush_cache", NULL, NULL) ==
          401);
    CHECK(ask((ml_access_opts){ .api_key = "c" }, "GET", "/flush_cache",
              "Authorization: Bearer c\r\n", NULL) == 200);
}

/* The answer comes although the body never does. */
static void bodies_wait_for_keys(void) {
    ml_serve_fixture_init(&f);
    f.opts.access.api_key = "k";
    ml_serve_fixture_start(&f);
    CHECK(ml_serve_ask(&f, "POST", "/generate",
                       "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", NULL,
                       &body) == 400); /* two lengths, which is refused before */
    f.promised = 1 << 19;
    CHECK(ml_serve_ask(&f, "POST", "/generate", "Expect: 100-continue\r\n", NULL, &body) ==
          401);
    CHECK(!strstr(body, "100 Continue"));
    CHECK_HAS(body, "Connection: close\r\n");
    ml_serve_fixture_stop(&f);
}

static void key_files(void) {
    const char *path = ml_test_path("key");
    ml_secret s;
    ml_err err = { 0 };

    CHECK(ml_file_replace(path, ml_str_of("s3cret\n"), NULL) == ML_OK);
    CHECK(chmod(path, 0600) == 0);
    CHECK(ml_secret_read(&s, path, "--api-key-file", &err) == ML_OK);
    CHECK(strcmp(s.text, "s3cret") == 0);
    for (int bit = 1; bit <= 040; bit <<= 1) {
        CHECK(chmod(path, (mode_t)(0600 | bit)) == 0);
        CHECK(ml_secret_read(&s, path, "--api-key-file", &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, "--api-key-file: ");
        CHECK_HAS(err.msg, "chmod 600");
    }
    CHECK(chmod(path, 0400) == 0);
    CHECK(ml_secret_read(&s, path, "--api-key-file", &err) == ML_OK);
    CHECK(ml_file_replace(path, ml_str_of("a\r\nX: y"), NULL) == ML_OK);
    CHECK(chmod(path, 0600) == 0);
    CHECK(ml_secret_read(&s, path, "--api-key-file", &err) == ML_EUSAGE);
    CHECK(ml_file_replace(path, ml_str_of("\n"), NULL) == ML_OK);
    CHECK(chmod(path, 0600) == 0);
    CHECK(ml_secret_read(&s, path, "--api-key-file", &err) == ML_EUSAGE);
    CHECK(ml_secret_read(&s, ml_test_path("none"), "--api-key-file", &err) == ML_EIO);
    CHECK(ml_secret_random(&s, &err) == ML_OK && strlen(s.text) == 64);
    CHECK(ml_secret_is("abc", ml_str_of("abc")) &&
          !ml_secret_is("abc", ml_str_of("abcabc")));
    CHECK(!ml_secret_is("abc", ml_str_of("")) && !ml_secret_is("", ml_str_of("")));
    CHECK(!ml_secret_is("abc", ml_str_of("abd")) && !ml_secret_is("abc", ml_str_of("ab")));
}

static void public_addresses_need_keys(void) {
    static const char *const any[] = { "*" };
    ml_access a;
    ml_err err = { 0 };

    CHECK(ml_access_init(&a, "0.0.0.0", &(ml_access_opts){ 0 }, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--insecure");
    CHECK(ml_access_init(&a, "::", &(ml_access_opts){ .admin_key = "k" }, &err) ==
          ML_EUSAGE);
    CHECK(ml_access_init(&a, "192.0.2.1", &(ml_access_opts){ 0 }, &err) == ML_EUSAGE);
    CHECK(ml_access_init(&a, "0.0.0.0", &(ml_access_opts){ .api_key = "k" }, &err) ==
          ML_OK);
    CHECK(!a.local);
    CHECK(ml_access_init(&a, "0.0.0.0", &(ml_access_opts){ .insecure = true }, &err) ==
          ML_OK);
    CHECK(ml_access_init(&a, "localhost", &(ml_access_opts){ 0 }, &err) == ML_OK &&
          a.local);
    CHECK(ml_access_init(&a, "127.0.0.7", &(ml_access_opts){ 0 }, &err) == ML_OK &&
          a.local);
    CHECK(ml_access_init(&a, "127.0.0.1",
                         &(ml_access_opts){ .allowed_origin = any, .n_origin = 1 },
                         &err) == ML_EUSAGE);
}

/* --- the router ------------------------------------------------------------------------ */

static int fetch(ml_router_fixture *w, const char *method, const char *path,
                 const char *json, const char *more) {
    ml_fetch x = { .no_key = true, .more = more };
    int status;

    ml_fetch_now(w, &x, method, path, json);
    status = x.status;
    ml_fetch_release(&x);
    return status;
}

static void keys_stay_with_their_workers(void) {
    static const char client[] = "Authorization: Bearer client\n";
    static const char admin[] = "Authorization: Bearer admin\n";
    ml_router_opts o = ml_router_fixture_opts();
    ml_router_fixture *w;
    char json[200];

    o.access = (ml_access_opts){ .api_key = "client", .admin_key = "admin" };
    o.worker_key = "worker";
    o.route.kind = ML_ROUTE_ROUND_ROBIN;
    w = ml_router_fixture_open(o, 1);
    ml_fake_worker_open(&w->worker[1], w->loop, 0);
    ml_fake_worker_open(&w->worker[2], w->loop, 0);
    snprintf(json, sizeof json, "{\"url\": \"%s\"}", w->worker[1].url);
    CHECK(fetch(w, "POST", "/add_worker", json, NULL) == 401);
    CHECK(fetch(w, "POST", "/add_worker", json, client) == 401);
    CHECK(fetch(w, "POST", "/workers", json, client) == 401);
    CHECK(fetch(w, "DELETE", "/workers/1", "", client) == 401);
    CHECK(fetch(w, "POST", "/remove_worker?url=1", "", client) == 401);
    CHECK(fetch(w, "POST", "/pause_generation", "", client) == 401);
    CHECK(fetch(w, "POST", "/some_new_admin_path", "", client) == 401);
    CHECK(fetch(w, "GET", "/workers", "", client) == 200);
    CHECK(fetch(w, "POST", "/add_worker", json, admin) == 200);
    snprintf(json, sizeof json, "{\"url\": \"%s\", \"api_key\": \"own\"}",
             w->worker[2].url);
    CHECK(fetch(w, "POST", "/workers", json, admin) == 202);
    CHECK(fetch(w, "POST", "/add_worker?url=http://127.0.0.1:9", "{\"api_key\": \"a b\"}",
                admin) == 400);
    for (int i = 0; i < ML_FIXTURE_WORKERS; i++)
        CHECK(ml_router_fixture_until(w, &w->worker[i].n_health, 1));
    CHECK(strcmp(w->worker[0].health_key, "Bearer worker") == 0);
    CHECK(w->worker[1].health_key[0] == 0);
    CHECK(strcmp(w->worker[2].health_key, "Bearer own") == 0);
    for (int i = 0; i < 3; i++)
        CHECK(fetch(w, "POST", "/generate", "{}", client) == 200);
    CHECK_HAS(w->worker[0].last.ptr, "POST /generate|Bearer worker|7|{}");
    CHECK_HAS(w->worker[1].last.ptr, "POST /generate||7|{}");
    CHECK_HAS(w->worker[2].last.ptr, "POST /generate|Bearer own|7|{}");
    CHECK(fetch(w, "POST", "/pause_generation", "", admin) == 200);
    CHECK_HAS(w->worker[1].last.ptr, "POST /pause_generation||7|");
    ml_router_fixture_close(w);
}

/* Without keys of the router, clients' go to workers of the command line alone. */
static void keys_pass_to_named_workers(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_router_fixture *w;
    char path[200];

    o.route.kind = ML_ROUTE_ROUND_ROBIN;
    w = ml_router_fixture_open(o, 1);
    ml_fake_worker_open(&w->worker[1], w->loop, 0);
    snprintf(path, sizeof path, "/add_worker?url=%s", w->worker[1].url);
    CHECK(fetch(w, "POST", path, "", NULL) == 200);
    for (int i = 0; i < 2; i++)
        CHECK(fetch(w, "POST", "/generate", "{}",
                    "Authorization: Bearer mine\nX-API-Key: mine\n") == 200);
    CHECK_HAS(w->worker[0].last.ptr, "|Bearer mine|");
    CHECK_HAS(w->worker[1].last.ptr, "POST /generate||7|");
    /* Pages are judged here, as by a server. */
    CHECK(fetch(w, "POST", "/generate", "{}", "Origin: http://evil.example\n") == 403);
    CHECK(fetch(w, "POST", path, "", "Sec-Fetch-Site: cross-site\n") == 403);
    CHECK(fetch(w, "GET", "/flush_cache", "", "Sec-Fetch-Site: none\n") == 403);
    CHECK(fetch(w, "GET", "/flush_cache", "", NULL) == 200);
    ml_router_fixture_close(w);
}

/* --- directories ------------------------------------------------------------------------ */

static void directories_of_requests(void) {
    const char *roots[] = { ml_test_path("ok"), ml_test_path("also") };
    static const struct {
        const char *path;
        bool fine;
    } cases[] = {
        { "ok", true },
        { "ok/", true },
        { "ok/a", true },
        { "ok/new/deep", true },
        { "also/x", true },
        { "ok/a/../b", true },
        { "ok/../also/y", true },
        { "okay", false },
        { "secret", false },
        { "ok/../secret", false },
        { "ok/link", false },
        { "ok/link/new", false },
        { "ok/new/../../secret", false },
        { "ok/dangling", false },
        { "ok/dangling/x", false },
        { "", false },
    };
    ml_weight_roots r = { roots, 2, "unused" };
    ml_arena a;
    ml_err err = { 0 };
    const char *out;

    ml_arena_init(&a, "test");
    CHECK(ml_dir_make(ml_test_path("ok/a"), NULL) == ML_OK);
    CHECK(ml_dir_make(ml_test_path("also"), NULL) == ML_OK);
    CHECK(ml_dir_make(ml_test_path("secret"), NULL) == ML_OK);
    CHECK(symlink(ml_test_path("secret"), ml_test_path("ok/link")) == 0);
    CHECK(symlink(ml_test_path("not_yet"), ml_test_path("ok/dangling")) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_status st = ml_weight_path_check(&out, &a, &r, ml_test_path(cases[i].path),
                                            "model_path", &err);
        if ((st == ML_OK) != cases[i].fine)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].path,
                         st ? err.msg : "is taken");
    }
    CHECK_HAS(err.msg, "\"model_path\"");
    /* Without roots: what lies beside the model. */
    r = (ml_weight_roots){ .model_path = ml_test_path("ok/a") };
    CHECK(ml_weight_path_check(&out, &a, &r, ml_test_path("ok/step_2"), "x", &err) ==
          ML_OK);
    CHECK(ml_weight_path_check(&out, &a, &r, ml_test_path("also"), "x", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--weight-path-prefix");
    r.model_path = "/bin";
    CHECK(ml_weight_path_check(&out, &a, &r, "/etc", "x", &err) == ML_EUSAGE);
    CHECK(ml_weight_path_check(&out, &a, &r, "relative", "x", &err) == ML_EUSAGE);
    ml_arena_release(&a);
}

static int post(const char *path, const char *json) {
    return ml_serve_ask(&f, "POST", path, NULL, json, &body);
}

/* The same through requests: nothing outside is read, made or changed. */
static void requests_name_directories(void) {
    const char *root = ml_test_path("ok");
    char json[3000];

    CHECK(ml_dir_make(ml_test_path("ok"), NULL) == ML_OK);
    CHECK(ml_dir_make(ml_test_path("home"), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("home/mine"), ml_str_of("x"), NULL) == ML_OK);
    ml_serve_fixture_init(&f);
    f.opts.weight_root = &root;
    f.opts.n_weight_root = 1;
    ml_serve_fixture_start(&f);
    snprintf(json, sizeof json,
             "{\"local_checkpoint_dir\": \"%s\", \"source_dir\": \"%s\", "
             "\"target_version\": 0}",
             ml_test_path("home"), ml_test_path("ok"));
    CHECK(post("/pull_weights", json) == 400);
    CHECK_HAS(body, "\\\"local_checkpoint_dir\\\" is ");
    CHECK(access(ml_test_path("home/mine"), F_OK) == 0);
    CHECK(access(ml_test_path("home/.weight_sync"), F_OK) != 0);
    snprintf(json, sizeof json,
             "{\"local_checkpoint_dir\": \"%s\", \"source_dir\": \"%s\", "
             "\"target_version\": 0}",
             ml_test_path("ok/copy"), ml_test_path("ok/../home"));
    CHECK(post("/pull_weights", json) == 400);
    CHECK_HAS(body, "\\\"source_dir\\\" is ");
    CHECK(access(ml_test_path("ok/copy"), F_OK) != 0);
    snprintf(json, sizeof json, "{\"model_path\": \"%s\"}", ml_test_path("home"));
    CHECK(post("/update_weights_from_disk", json) == 400);
    CHECK_HAS(body, "--weight-path-prefix");
    CHECK(f.loaded[0] == 0);
    snprintf(json, sizeof json, "{\"model_path\": \"%s\\u0000/../../etc\"}",
             ml_test_path("ok"));
    CHECK(post("/update_weights_from_disk", json) == 400);
    CHECK_HAS(body, "\\\"model_path\\\" contains a NUL character");
    CHECK(post("/pull_weights", "{\"local_checkpoint_dir\": \"a\\u0000b\", \"source_dir\": "
                                "\"s\", \"target_version\": 0}") == 400);
    CHECK_HAS(body, "\\\"local_checkpoint_dir\\\" contains a NUL character");
    CHECK(post("/pull_weights", "{\"local_checkpoint_dir\": \"a\", \"source_dir\": "
                                "\"s\\u0000\", \"target_version\": 0}") == 400);
    CHECK_HAS(body, "\\\"source_dir\\\" contains a NUL character");
    ml_serve_fixture_stop(&f);
}

/* Makes and removes a directory until told to stop. */
typedef struct maker {
    char path[600];
    atomic_bool stop;
} maker;

static void *make_and_remove(void *ud) {
    maker *m = ud;

    while (!atomic_load(&m->stop)) {
        mkdir(m->path, 0777);
        rmdir(m->path);
    }
    return NULL;
}

static void directories_that_appear(void) {
    const char *root = ml_test_path(".");
    ml_weight_roots r = { &root, 1, NULL };
    maker m = { 0 };
    pthread_t other;
    int failed = 0;

    snprintf(m.path, sizeof m.path, "%s", ml_test_path("shared"));
    CHECK(pthread_create(&other, NULL, make_and_remove, &m) == 0);
    for (int i = 0; i < 5000; i++) {
        const char *out;
        ml_arena a;
        ml_arena_init(&a, "path");
        failed += ml_weight_path_check(&out, &a, &r, m.path, "x", NULL) != ML_OK;
        ml_arena_release(&a);
    }
    atomic_store(&m.stop, true);
    pthread_join(other, NULL);
    CHECK(failed == 0);
}

static const ml_test tests[] = {
    { "only known names in Host are served", names_in_host },
    { "pages of other origins are refused", pages_of_browsers },
    { "preflight requests of allowed origins are answered", pages_ask_before },
    { "administration endpoints take JSON bodies alone", administration_takes_json },
    { "each endpoint takes the key of its class alone", keys_by_class },
    { "a request without its key is refused before its body is read",
      bodies_wait_for_keys },
    { "a key file that others can read is refused", key_files },
    { "a server on a public address needs a key or --insecure",
      public_addresses_need_keys },
    { "the router's keys reach no client and no other worker",
      keys_stay_with_their_workers },
    { "clients' keys reach workers of the command line alone", keys_pass_to_named_workers },
    { "paths outside --weight-path-prefix are refused", directories_of_requests },
    { "a weight path is accepted while another server creates it",
      directories_that_appear },
    { "requests read and write nothing outside --weight-path-prefix",
      requests_name_directories },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
