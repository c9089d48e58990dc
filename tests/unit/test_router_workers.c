/* The router's workers: their health, their coming and going, and what all of them hear. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/router_fixture.h"
#include "tests/support/test.h"

static void no_worker(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_fetch f = { 0 };
    ml_router_fixture *w;

    o.health_interval_s = 0;
    w = ml_router_fixture_open(o, 0);
    ml_fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 503);
    CHECK_HAS(f.body.ptr, "no healthy worker");
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "GET", "/health", "");
    CHECK(f.status == 503);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "POST", "/add_worker?url=http%3A%2F%2F127.0.0.1:1", "");
    CHECK(f.status == 200);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 502);
    CHECK_HAS(f.body.ptr, "http://127.0.0.1:1/generate");
    CHECK_HAS(f.body.ptr, "refused");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

/* Asks until the reply has this status and text, for some seconds at most. */
static bool comes_to(ml_router_fixture *w, const char *method, const char *path, int status,
                     const char *text) {
    bool there = false;

    for (int i = 0; i < 400 && !there; i++) {
        ml_fetch f = { 0 };
        ml_router_fixture_run(w, 0.05);
        ml_fetch_now(w, &f, method, path, "{}");
        there = f.status == status && strstr(f.body.ptr, text);
        ml_fetch_release(&f);
    }
    return there;
}

static void health_is_watched(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 2);
    ml_fetch f = { 0 };
    int port = atoi(strrchr(w->worker[0].url, ':') + 1);

    for (int i = 0; i < 2; i++)
        CHECK(ml_router_fixture_until(w, &w->worker[i].n_health, 2));
    w->worker[1].ill = true;
    CHECK(comes_to(w, "GET", "/workers", 200, "\"is_healthy\": false"));
    for (int i = 0; i < 4; i++) {
        ml_fetch_now(w, &f, "POST", "/generate", "{}");
        CHECK(f.status == 200);
        ml_fetch_release(&f);
    }
    CHECK(w->worker[0].n_request == 4 && w->worker[1].n_request == 0);
    ml_fetch_now(w, &f, "GET", "/workers", "");
    CHECK_HAS(f.body.ptr, "\"is_healthy\": false");
    CHECK_HAS(f.body.ptr, "\"is_healthy\": true");
    CHECK_HAS(f.body.ptr, "\"total\": 2");
    ml_fetch_release(&f);
    /* One comes back, the other goes. */
    w->worker[1].ill = false;
    ml_fake_worker_close(&w->worker[0]);
    CHECK(comes_to(w, "POST", "/generate", 200, "") && w->worker[1].n_request == 1);
    ml_fake_worker_close(&w->worker[1]);
    CHECK(comes_to(w, "GET", "/readiness", 503, ""));
    ml_fake_worker_open(&w->worker[0], w->loop, port);
    CHECK(comes_to(w, "GET", "/health", 200, ""));
    ml_router_fixture_close(w);
}

static ml_status refuse(void *owner, const char *url, const char *key, ml_err *err) {
    *(bool *)owner = true;
    return ml_fail(err, ML_EUNSUP, "%s stays outside%s", url, key ? ", with its key" : "");
}

static void an_owner_may_refuse_a_worker(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_fetch f = { 0 };
    ml_router_fixture *w;
    bool asked = false;

    o.owner = &asked;
    o.added = refuse;
    w = ml_router_fixture_open(o, 0);
    ml_fetch_now(w, &f, "POST", "/add_worker",
                 "{\"url\": \"http://127.0.0.1:1\", \"api_key\": \"k\"}");
    CHECK(asked && f.status == 400);
    CHECK_HAS(f.body.ptr, "http://127.0.0.1:1 stays outside, with its key");
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "GET", "/workers", "");
    CHECK_HAS(f.body.ptr, "\"total\": 0");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void workers_come_and_go(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    ml_fetch f = { .stop_at_data = true };
    char path[200];

    ml_fake_worker_open(&w->worker[1], w->loop, 0);
    snprintf(path, sizeof path, "/add_worker?url=%s/", w->worker[1].url);
    ml_fetch_release(&f);
    for (int i = 0; i < 2; i++) { /* twice is once */
        ml_fetch_now(w, &f, "POST", path, "");
        CHECK(f.status == 200);
        CHECK_HAS(f.body.ptr, "\"status\": \"success\"");
        ml_fetch_release(&f);
    }
    ml_fetch_now(w, &f, "GET", "/list_workers", "");
    snprintf(path, sizeof path, "{\"urls\": [\"%s\", \"%s\"], \"fans_out\": true}",
             w->worker[0].url, w->worker[1].url);
    CHECK(strcmp(f.body.ptr, path) == 0);
    ml_fetch_release(&f);
    /* A worker that is removed ends what it has. */
    f.stop_at_data = true;
    ml_fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(w->worker[0].held || w->worker[1].held);
    f.stop_at_data = false;
    for (int i = 0; i < 2; i++) {
        ml_fetch g = { 0 };
        snprintf(path, sizeof path,
                 i ? "/workers/http%%3A%%2F%%2F%s" : "/remove_worker?url=%s",
                 w->worker[i].url + (i ? 7 : 0));
        ml_fetch_now(w, &g, i ? "DELETE" : "POST", path, "");
        CHECK(g.status == (i ? 202 : 200));
        ml_fetch_release(&g);
    }
    if (!f.done)
        ml_loop_run(w->loop);
    CHECK(f.done && !f.failed);
    CHECK_HAS(f.body.ptr, "data: 5\n\n");
    ml_fetch_release(&f);
    snprintf(path, sizeof path, "{\"url\": \"%s\"}", w->worker[0].url);
    ml_fetch_now(w, &f, "POST", "/workers", path);
    CHECK(f.status == 202);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 200);
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void wrong_questions(void) {
    static const struct {
        const char *method, *path, *body;
        int status;
    } cases[] = {
        { "POST", "/add_worker", "", 400 },
        { "POST", "/add_worker", "{\"url\": 7}", 400 },
        { "POST", "/add_worker?url=ftp://x", "", 400 },
        { "POST", "/add_worker?url=http://x/path", "", 400 },
        { "POST", "/add_worker?url=ftp://x", "", 400 },
        { "POST", "/add_worker?url=http://x:1%00y", "", 400 },
        { "POST", "/add_worker?url=http://a%22b:1", "", 400 },
        { "POST", "/add_worker?url=http://a%7fb:1", "", 400 },
        { "POST", "/add_worker?url=http://u:p@x:1", "", 400 },
        { "POST", "/add_worker?url=http://[::1%0d%0aX:y]:1", "", 400 },
        { "POST", "/add_worker", "{\"url\": \"http://x:1\\u0000\"}", 400 },
        { "GET", "/add_worker?url=http://x:1", "", 405 },
        { "POST", "/remove_worker?url=http://nobody:1", "", 404 },
        { "DELETE", "/workers/99", "", 404 },
        { "PUT", "/workers", "", 405 },
        { "GET", "/liveness", "", 200 },
    };
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_fetch f = { 0 };
        ml_fetch_now(w, &f, cases[i].method, cases[i].path, cases[i].body);
        if (f.status != cases[i].status)
            ml_test_fail(__FILE__, __LINE__, "case %zu: %d %s", i, f.status, f.body.ptr);
        ml_fetch_release(&f);
    }
    CHECK(w->worker[0].n_request == 0);
    ml_router_fixture_close(w);
}

/* Weights, pauses, caches and aborts concern all workers. */
static void every_worker_hears(void) {
    static const char *const path[] = { "/update_weights_from_disk", "/pause_generation",
                                        "/continue_generation", "/abort_request",
                                        "/flush_cache" };
    ml_router_fixture *w =
        ml_router_fixture_open(ml_router_fixture_opts(), ML_FIXTURE_WORKERS);
    ml_fetch f = { 0 };
    int n_request;

    w->worker[0].reply = "{\"success\":true}";
    for (size_t k = 0; k < sizeof path / sizeof *path; k++) {
        ml_fetch_now(w, &f, "POST", path[k], "{\"model_path\":\"x\"}");
        CHECK(f.done && f.status == 200);
        CHECK_HAS(f.body.ptr, "success");
        for (int i = 0; i < ML_FIXTURE_WORKERS; i++) {
            CHECK(w->worker[i].n_request == (int)k + 1);
            CHECK_HAS(w->worker[i].last.ptr, path[k]);
            CHECK_HAS(w->worker[i].last.ptr, "|{\"model_path\":\"x\"}");
        }
        ml_fetch_release(&f);
    }
    w->worker[1].status = 400;
    w->worker[1].reply = "{\"success\":false}";
    ml_fetch_now(w, &f, "POST", path[0], "{}");
    CHECK(f.status == 400);
    CHECK_HAS(f.body.ptr, "false");
    ml_fetch_release(&f);
    w->worker[1].status = 200;
    ml_fake_worker_close(&w->worker[2]);
    ml_fetch_now(w, &f, "POST", path[0], "{}");
    CHECK(f.status == 502);
    CHECK_HAS(f.body.ptr, w->worker[2].url);
    ml_fetch_release(&f);
    w->worker[1].silent = true; /* the client goes while one has not answered */
    n_request = w->worker[1].n_request;
    ml_fetch_start(w, &f, "POST", path[0], "{}");
    CHECK(ml_router_fixture_until(w, &w->worker[1].n_request, n_request + 1));
    ml_http_cancel(f.job);
    CHECK(ml_router_fixture_until(w, &w->worker[1].n_gone, 1));
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

/* One that does not answer does not keep the others' answers for ever. */
static void a_silent_worker_is_not_awaited(void) {
    static const char *const path[] = { "/flush_cache", "/update_weights_from_disk" };
    ml_router_opts o = ml_router_fixture_opts();
    ml_router_fixture *w;

    o.request_timeout_s = 0.2;
    w = ml_router_fixture_open(o, ML_FIXTURE_WORKERS);
    w->worker[1].silent = true;
    for (size_t k = 0; k < sizeof path / sizeof *path; k++) {
        ml_fetch f = { 0 };
        ml_fetch_now(w, &f, "POST", path[k], "{}");
        CHECK(f.done && f.status == 504);
        CHECK_HAS(f.body.ptr, w->worker[1].url);
        CHECK_HAS(f.body.ptr, "did not reply within 0.2 s");
        ml_fetch_release(&f);
    }
    ml_router_fixture_close(w);
}

/* What is said to all has a short answer. */
static void a_worker_that_says_too_much(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    char *much = calloc(1, (2 << 20) + 1);
    ml_fetch f = { 0 };

    memset(much, ' ', 2 << 20);
    w->worker[0].reply = much;
    ml_fetch_now(w, &f, "POST", "/flush_cache", "{}");
    CHECK(f.done && f.status == 502);
    CHECK_HAS(f.body.ptr, "the reply exceeds the limit of 1048576 bytes");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
    free(much);
}

static const ml_test tests[] = {
    { "a router without workers answers 503", no_worker },
    { "an unhealthy worker gets no requests until it recovers", health_is_watched },
    { "workers are added and removed at run time", workers_come_and_go },
    { "the owner of a router may refuse a worker", an_owner_may_refuse_a_worker },
    { "bad worker administration is refused", wrong_questions },
    { "weights, pauses and aborts go to every worker", every_worker_hears },
    { "a silent worker does not delay a broadcast beyond its timeout",
      a_silent_worker_is_not_awaited },
    { "a broadcast reply that is too long is refused", a_worker_that_says_too_much },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
