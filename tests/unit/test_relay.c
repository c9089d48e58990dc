/* The router between clients and workers, over real sockets: all of them on one loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/http_client.h"
#include "net/http_server.h"
#include "serve/router.h"
#include "tests/support/test.h"

enum { N_WORKER = 3 };

/* A worker that does as its `mood` says. */
typedef struct fake {
    ml_loop *loop;
    ml_http_server *server;
    ml_http_call *held;
    ml_timer *timer;
    char url[64];
    int n_request, n_health, n_gone, n_piece;
    int status;        /* of a plain reply */
    bool ill;          /* says so when asked for its health */
    bool dies;         /* in the middle of a stream */
    bool silent;       /* never answers */
    ml_text last;      /* what it was asked: "POST /path?query|key|body" */
    const char *reply; /* of /plain */
} fake;

typedef struct world {
    ml_loop *loop;
    ml_router *router;
    ml_http_client *client;
    fake worker[N_WORKER];
    char base[64];
} world;

/* What a client got. */
typedef struct fetch {
    world *world;
    ml_http_job *job;
    int status, n_piece;
    bool failed, done;
    ml_text headers, body;
    ml_err err;
    bool stop_at_data;
} fetch;

static void held_gone(void *ud) {
    fake *f = ud;
    f->held = NULL;
    f->n_gone++;
    ml_timer_stop(f->timer);
    f->timer = NULL;
}

static void next_piece(void *ud) {
    fake *f = ud;
    char piece[64];

    if (f->n_piece == 3 && f->dies) {
        ml_http_abort(f->held);
    } else if (f->n_piece == 6) {
        ml_http_end(f->held);
    } else {
        snprintf(piece, sizeof piece, "data: %d\n\n", f->n_piece++);
        ml_http_write(f->held, ml_str_of(piece));
        return;
    }
    f->held = NULL;
    ml_timer_stop(f->timer);
    f->timer = NULL;
}

static void begin_stream(fake *f, ml_http_call *c, const char *type) {
    f->held = c;
    f->n_piece = 0;
    ml_http_on_gone(c, held_gone, f);
    ml_http_begin(c, 200, type);
    f->timer = ml_timer_start(f->loop, 0.005, true, next_piece, f);
}

static void remember(fake *f, const ml_http_call *c) {
    ml_str m = ml_http_method(c), t = ml_http_target(c), b = ml_http_body(c);
    ml_str auth = ml_http_header(c, "authorization"), own = ml_http_header(c, "x-own");

    f->last.len = 0;
    ml_text_printf(&f->last, "%.*s %.*s|%.*s|%.*s|%.*s", (int)m.len, m.ptr, (int)t.len,
                   t.ptr, (int)auth.len, auth.ptr, (int)own.len, own.ptr, (int)b.len,
                   b.ptr);
}

static void work(void *ud, ml_http_call *c) {
    fake *f = ud;
    ml_str path = ml_http_path(c);

    if (ml_str_is(path, "/health")) {
        f->n_health++;
        ml_http_reply(c, f->ill ? 503 : 200, "text/plain", ml_str_of(""));
        return;
    }
    f->n_request++;
    remember(f, c);
    if (ml_str_is(path, "/stream"))
        begin_stream(f, c, "text/event-stream");
    else if (ml_str_is(path, "/pieces"))
        begin_stream(f, c, "application/octet-stream");
    else if (f->silent) {
        f->held = c;
        ml_http_on_gone(c, held_gone, f);
    } else {
        ml_http_add_header(c, "X-Worker", f->url);
        ml_http_reply(c, f->status, "application/json",
                      ml_str_of(f->reply ? f->reply : "{}"));
    }
}

static void open_fake(fake *f, ml_loop *l, int port) {
    static const ml_http_limits limits = { 8192, 1 << 20, 100, 60, 1 << 20 };
    ml_err err = { 0 };

    f->loop = l;
    if (ml_http_server_open(&f->server, l, "127.0.0.1", port, limits, work, f, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    f->status = 200;
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", ml_http_server_port(f->server));
}

static void close_fake(fake *f) {
    ml_http_server_close(f->server);
    f->server = NULL;
}

static ml_router_opts usual(void) {
    return (ml_router_opts){ .host = "127.0.0.1",
                             .route = { .kind = ML_ROUTE_LEAST_LOADED,
                                        .cache_threshold = 0.5,
                                        .balance_abs = 64,
                                        .balance_rel = 1.5,
                                        .tree_bytes = 1 << 20 },
                             .health_interval_s = 0.05,
                             .health_timeout_s = 1,
                             .health_path = "/health",
                             .failure_threshold = 2,
                             .success_threshold = 2,
                             .max_retries = 5,
                             .request_timeout_s = 20,
                             .connect_timeout_s = 2,
                             .max_body = 1 << 16 };
}

static world *open_world(ml_router_opts o, int n_worker) {
    world *w = calloc(1, sizeof *w);
    const char *url[N_WORKER];
    ml_err err = { 0 };

    CHECK(ml_loop_new(&w->loop, &err) == ML_OK);
    w->client = ml_http_client_new(w->loop);
    for (int i = 0; i < n_worker; i++) {
        open_fake(&w->worker[i], w->loop, 0);
        url[i] = w->worker[i].url;
    }
    o.worker_url = url;
    o.n_worker = n_worker;
    if (ml_router_open(&w->router, w->loop, &o, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
    snprintf(w->base, sizeof w->base, "http://127.0.0.1:%d", ml_router_port(w->router));
    return w;
}

static void close_world(world *w) {
    ml_router_close(w->router);
    ml_http_client_free(w->client);
    for (int i = 0; i < N_WORKER; i++) {
        close_fake(&w->worker[i]);
        ml_text_release(&w->worker[i].last);
    }
    ml_loop_free(w->loop);
    free(w);
}

static void got_head(void *ud, int status, ml_str headers) {
    fetch *f = ud;
    f->status = status;
    ml_text_add(&f->headers, headers.ptr, headers.len);
}

static void got_data(void *ud, ml_str piece) {
    fetch *f = ud;
    f->n_piece++;
    ml_text_add(&f->body, piece.ptr, piece.len);
    if (f->stop_at_data)
        ml_loop_stop(f->world->loop);
}

static void got_done(void *ud, const ml_err *err) {
    fetch *f = ud;
    f->done = true;
    f->failed = err != NULL;
    if (err)
        f->err = *err;
    ml_loop_stop(f->world->loop);
}

static void release(fetch *f) {
    ml_text_release(&f->headers);
    ml_text_release(&f->body);
    *f = (fetch){ 0 };
}

static void start(world *w, fetch *f, const char *method, const char *path,
                  const char *body) {
    ml_text url = { 0 };
    ml_http_fns fns = { got_head, got_data, got_done, f };
    ml_http_request r = { .method = method,
                          .headers = "Authorization: Bearer mine\nX-Own: 7\n",
                          .body = ml_str_of(body),
                          .connect_s = 5,
                          .idle_s = 10 };
    ml_err err = { 0 };

    f->world = w;
    ml_text_add(&f->body, "", 0);
    ml_text_add(&f->headers, "", 0);
    ml_text_printf(&url, "%s%s", w->base, path);
    r.url = url.ptr;
    CHECK(ml_http_start(&f->job, w->client, &r, fns, &err) == ML_OK);
    ml_text_release(&url);
}

static void fetch_now(world *w, fetch *f, const char *method, const char *path,
                      const char *body) {
    start(w, f, method, path, body);
    ml_loop_run(w->loop);
}

static void stop(void *ud) {
    ml_loop_stop(((world *)ud)->loop);
}

/* Lets the loop run for a while. */
static void let_pass(world *w, double seconds) {
    ml_timer *t = ml_timer_start(w->loop, seconds, false, stop, w);
    ml_loop_run(w->loop);
    ml_timer_stop(t);
}

/* --- handing on ------------------------------------------------------------- */

static void plain(void) {
    world *w = open_world(usual(), 1);
    fetch f = { 0 };

    w->worker[0].reply = "{\"text\": \"hi\"}";
    w->worker[0].status = 418;
    fetch_now(w, &f, "POST", "/generate?a=%20b", "{\"text\": \"x\"}");
    CHECK(!f.failed && f.status == 418);
    CHECK_HAS(f.body.ptr, "{\"text\": \"hi\"}");
    CHECK_HAS(f.headers.ptr, "Content-Type: application/json\n");
    CHECK_HAS(f.headers.ptr, "Content-Length: 14\n");
    CHECK_HAS(f.headers.ptr, w->worker[0].url);
    CHECK(strcmp(w->worker[0].last.ptr,
                 "POST /generate?a=%20b|Bearer mine|7|{\"text\": \"x\"}") == 0);
    release(&f);
    fetch_now(w, &f, "HEAD", "/x", "");
    CHECK(!f.failed && f.status == 418 && f.body.len == 0);
    release(&f);
    fetch_now(w, &f, "DELETE", "/some/thing", "");
    CHECK(strncmp(w->worker[0].last.ptr, "DELETE /some/thing|", 19) == 0);
    release(&f);
    close_world(w);
}

static void streams_in_pieces(void) {
    world *w = open_world(usual(), 2);
    fetch f = { 0 };

    fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(!f.failed && f.n_piece >= 4); /* as they came, not at the end */
    CHECK(strcmp(f.body.ptr, "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n"
                             "data: 5\n\n") == 0);
    CHECK_HAS(f.headers.ptr, "Content-Type: text/event-stream\n");
    release(&f);
    close_world(w);
}

static void client_vanishes(void) {
    world *w = open_world(usual(), 1);
    fetch f = { .stop_at_data = true };

    fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(f.n_piece > 0 && w->worker[0].held);
    ml_http_cancel(f.job);
    let_pass(w, 0.1);
    CHECK(w->worker[0].n_gone == 1 && !w->worker[0].held);
    release(&f);
    w->worker[0].silent = true;
    start(w, &f, "POST", "/generate", "{}");
    let_pass(w, 0.1);
    CHECK(w->worker[0].held != NULL);
    ml_http_cancel(f.job);
    let_pass(w, 0.1);
    CHECK(w->worker[0].n_gone == 2);
    release(&f);
    close_world(w);
}

static void worker_dies_in_the_middle(void) {
    world *w = open_world(usual(), 1);
    fetch f = { 0 };

    w->worker[0].dies = true;
    fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(!f.failed);
    CHECK(strncmp(f.body.ptr, "data: 0\n\n", 9) == 0);
    CHECK_HAS(f.body.ptr, "data: {\"error\": {\"message\": ");
    CHECK(strcmp(f.body.ptr + f.body.len - 2, "\n\n") == 0);
    release(&f);
    fetch_now(w, &f, "POST", "/pieces", "{}");
    CHECK(f.failed && f.done); /* cut, so that it does not look whole */
    release(&f);
    fetch_now(w, &f, "GET", "/metrics", "");
    CHECK_HAS(f.body.ptr, "miles_router_broken_total 2\n");
    release(&f);
    close_world(w);
}

/* --- retries and health ----------------------------------------------------- */

static void another_worker_is_tried(void) {
    ml_router_opts o = usual();
    fetch f = { 0 };
    world *w;

    o.health_interval_s = 0;
    w = open_world(o, 3);
    close_fake(&w->worker[0]);
    w->worker[1].status = 503;
    w->worker[2].reply = "third";
    fetch_now(w, &f, "POST", "/generate", "{\"text\": \"x\"}");
    CHECK(!f.failed && f.status == 200);
    CHECK_HAS(f.body.ptr, "third");
    CHECK(w->worker[1].n_request == 1);
    release(&f);
    /* Errors of the request itself are nobody else's. */
    w->worker[2].status = 500;
    w->worker[1].status = 400;
    for (int i = 0; i < 2; i++) {
        fetch_now(w, &f, "POST", "/generate", "{}");
        CHECK(f.status == 500 || f.status == 400);
        release(&f);
    }
    /* When all say so, it is the answer. */
    w->worker[1].status = w->worker[2].status = 503;
    fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 503);
    release(&f);
    close_world(w);
}

static void no_worker(void) {
    ml_router_opts o = usual();
    fetch f = { 0 };
    world *w;

    o.health_interval_s = 0;
    w = open_world(o, 0);
    fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 503);
    CHECK_HAS(f.body.ptr, "no worker is alive");
    release(&f);
    fetch_now(w, &f, "GET", "/health", "");
    CHECK(f.status == 503);
    release(&f);
    fetch_now(w, &f, "POST", "/add_worker?url=http%3A%2F%2F127.0.0.1:1", "");
    CHECK(f.status == 200);
    release(&f);
    fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 502);
    CHECK_HAS(f.body.ptr, "http://127.0.0.1:1/generate");
    CHECK_HAS(f.body.ptr, "refused");
    release(&f);
    close_world(w);
}

static void health_is_watched(void) {
    world *w = open_world(usual(), 2);
    fetch f = { 0 };
    int port = atoi(strrchr(w->worker[0].url, ':') + 1);

    let_pass(w, 0.15);
    CHECK(w->worker[0].n_health >= 2 && w->worker[1].n_health >= 2);
    w->worker[1].ill = true;
    let_pass(w, 0.3);
    for (int i = 0; i < 4; i++) {
        fetch_now(w, &f, "POST", "/generate", "{}");
        CHECK(f.status == 200);
        release(&f);
    }
    CHECK(w->worker[0].n_request == 4 && w->worker[1].n_request == 0);
    fetch_now(w, &f, "GET", "/workers", "");
    CHECK_HAS(f.body.ptr, "\"is_healthy\": false");
    CHECK_HAS(f.body.ptr, "\"is_healthy\": true");
    CHECK_HAS(f.body.ptr, "\"total\": 2");
    release(&f);
    /* One comes back, the other goes. */
    w->worker[1].ill = false;
    close_fake(&w->worker[0]);
    let_pass(w, 0.4);
    fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 200 && w->worker[1].n_request == 1);
    release(&f);
    close_fake(&w->worker[1]);
    let_pass(w, 0.3);
    fetch_now(w, &f, "GET", "/readiness", "");
    CHECK(f.status == 503);
    release(&f);
    open_fake(&w->worker[0], w->loop, port);
    let_pass(w, 0.4);
    fetch_now(w, &f, "GET", "/health", "");
    CHECK(f.status == 200);
    release(&f);
    close_world(w);
}

/* --- the router's own endpoints --------------------------------------------- */

static void workers_come_and_go(void) {
    world *w = open_world(usual(), 1);
    fetch f = { .stop_at_data = true };
    char path[200];

    open_fake(&w->worker[1], w->loop, 0);
    snprintf(path, sizeof path, "/add_worker?url=%s/", w->worker[1].url);
    release(&f);
    for (int i = 0; i < 2; i++) { /* twice is once */
        fetch_now(w, &f, "POST", path, "");
        CHECK(f.status == 200);
        CHECK_HAS(f.body.ptr, "\"status\": \"success\"");
        release(&f);
    }
    fetch_now(w, &f, "GET", "/list_workers", "");
    snprintf(path, sizeof path, "{\"urls\": [\"%s\", \"%s\"]}", w->worker[0].url,
             w->worker[1].url);
    CHECK(strcmp(f.body.ptr, path) == 0);
    release(&f);
    /* A worker that is removed ends what it has. */
    f.stop_at_data = true;
    fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(w->worker[0].held || w->worker[1].held);
    f.stop_at_data = false;
    for (int i = 0; i < 2; i++) {
        fetch g = { 0 };
        snprintf(path, sizeof path,
                 i ? "/workers/http%%3A%%2F%%2F%s" : "/remove_worker?url=%s",
                 w->worker[i].url + (i ? 7 : 0));
        fetch_now(w, &g, i ? "DELETE" : "POST", path, "");
        CHECK(g.status == (i ? 202 : 200));
        release(&g);
    }
    if (!f.done)
        ml_loop_run(w->loop);
    CHECK(f.done && !f.failed);
    CHECK_HAS(f.body.ptr, "data: 5\n\n");
    release(&f);
    snprintf(path, sizeof path, "{\"url\": \"%s\"}", w->worker[0].url);
    fetch_now(w, &f, "POST", "/workers", path);
    CHECK(f.status == 202);
    release(&f);
    fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 200);
    release(&f);
    close_world(w);
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
        { "POST", "/add_worker?url=https://x", "", 400 },
        { "GET", "/add_worker?url=http://x:1", "", 405 },
        { "POST", "/remove_worker?url=http://nobody:1", "", 404 },
        { "DELETE", "/workers/99", "", 404 },
        { "PUT", "/workers", "", 405 },
        { "GET", "/liveness", "", 200 },
    };
    world *w = open_world(usual(), 1);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fetch f = { 0 };
        fetch_now(w, &f, cases[i].method, cases[i].path, cases[i].body);
        if (f.status != cases[i].status)
            ml_test_fail(__FILE__, __LINE__, "case %zu: %d %s", i, f.status, f.body.ptr);
        release(&f);
    }
    CHECK(w->worker[0].n_request == 0);
    close_world(w);
}

static void limits(void) {
    ml_router_opts o = usual();
    fetch f = { 0 }, g = { 0 };
    world *w;

    o.max_concurrent = 1;
    o.request_timeout_s = 0.3;
    w = open_world(o, 1);
    w->worker[0].silent = true;
    start(w, &f, "POST", "/generate", "{}");
    let_pass(w, 0.05);
    fetch_now(w, &g, "POST", "/generate", "{}");
    CHECK(g.status == 429);
    ml_loop_run(w->loop);
    CHECK(f.status == 504);
    CHECK_HAS(f.body.ptr, "--request-timeout-secs");
    let_pass(w, 0.05);
    CHECK(w->worker[0].n_gone == 1);
    release(&f);
    release(&g);
    close_world(w);
}

static void prompts_stay_together(void) {
    ml_router_opts o = usual();
    world *w;

    o.route.kind = ML_ROUTE_CACHE_AWARE;
    o.health_interval_s = 0;
    w = open_world(o, 3);
    for (int i = 0; i < 30; i++) {
        fetch f = { 0 };
        char body[200];
        snprintf(body, sizeof body,
                 "{\"sampling_params\": {\"n\": %d}, \"text\": \"%c: a prompt with a long "
                 "common beginning, %d\"}",
                 i, 'a' + i % 3, i / 3);
        fetch_now(w, &f, "POST", "/generate", body);
        CHECK(f.status == 200);
        release(&f);
    }
    for (int i = 0; i < 3; i++)
        CHECK(w->worker[i].n_request == 10);
    close_world(w);
}

static void api_key_is_added(void) {
    ml_router_opts o = usual();
    world *w;
    fetch f = { 0 };
    ml_http_fns fns = { got_head, got_data, got_done, &f };
    char url[100];
    ml_http_request r = { .method = "GET", .url = url, .connect_s = 5, .idle_s = 5 };
    ml_err err = { 0 };

    o.api_key = "secret";
    w = open_world(o, 1);
    f.world = w;
    snprintf(url, sizeof url, "%s/x", w->base);
    CHECK(ml_http_start(&f.job, w->client, &r, fns, &err) == ML_OK);
    ml_loop_run(w->loop);
    CHECK_HAS(w->worker[0].last.ptr, "|Bearer secret|");
    release(&f);
    close_world(w);
}

/* Weights, pauses, caches and aborts concern all workers. */
static void every_worker_hears(void) {
    static const char *const path[] = { "/update_weights_from_disk", "/pause_generation",
                                        "/continue_generation", "/abort_request",
                                        "/flush_cache" };
    world *w = open_world(usual(), N_WORKER);
    fetch f = { 0 };

    w->worker[0].reply = "{\"success\":true}";
    for (size_t k = 0; k < sizeof path / sizeof *path; k++) {
        fetch_now(w, &f, "POST", path[k], "{\"model_path\":\"x\"}");
        CHECK(f.done && f.status == 200);
        CHECK_HAS(f.body.ptr, "success");
        for (int i = 0; i < N_WORKER; i++) {
            CHECK(w->worker[i].n_request == (int)k + 1);
            CHECK_HAS(w->worker[i].last.ptr, path[k]);
            CHECK_HAS(w->worker[i].last.ptr, "|{\"model_path\":\"x\"}");
        }
        release(&f);
    }
    w->worker[1].status = 400;
    w->worker[1].reply = "{\"success\":false}";
    fetch_now(w, &f, "POST", path[0], "{}");
    CHECK(f.status == 400);
    CHECK_HAS(f.body.ptr, "false");
    release(&f);
    w->worker[1].status = 200;
    close_fake(&w->worker[2]);
    fetch_now(w, &f, "POST", path[0], "{}");
    CHECK(f.status == 502);
    CHECK_HAS(f.body.ptr, w->worker[2].url);
    release(&f);
    w->worker[1].silent = true; /* the client goes while one has not answered */
    start(w, &f, "POST", path[0], "{}");
    let_pass(w, 0.1);
    ml_http_cancel(f.job);
    let_pass(w, 0.1);
    CHECK(w->worker[1].n_gone == 1);
    release(&f);
    close_world(w);
}

static void draining(void) {
    world *w = open_world(usual(), 1);
    fetch f = { .stop_at_data = true };

    fetch_now(w, &f, "POST", "/stream", "{}");
    f.stop_at_data = false;
    ml_router_drain(w->router);
    ml_loop_run(w->loop); /* the client's end */
    CHECK(f.done && !f.failed);
    CHECK_HAS(f.body.ptr, "data: 5\n\n");
    ml_loop_run(w->loop); /* the router's */
    release(&f);
    close_world(w);
}

static const ml_test tests[] = {
    { "plain", plain },
    { "streams_in_pieces", streams_in_pieces },
    { "client_vanishes", client_vanishes },
    { "worker_dies_in_the_middle", worker_dies_in_the_middle },
    { "another_worker_is_tried", another_worker_is_tried },
    { "no_worker", no_worker },
    { "health_is_watched", health_is_watched },
    { "workers_come_and_go", workers_come_and_go },
    { "wrong_questions", wrong_questions },
    { "limits", limits },
    { "prompts_stay_together", prompts_stay_together },
    { "api_key_is_added", api_key_is_added },
    { "every_worker_hears", every_worker_hears },
    { "draining", draining },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
