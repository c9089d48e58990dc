/* What the router hands on between clients and workers. */
#include <stdio.h>
#include <string.h>

#include "tests/support/router_fixture.h"
#include "tests/support/test.h"

static void plain(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    ml_fetch f = { 0 };

    w->worker[0].reply = "{\"text\": \"hi\"}";
    w->worker[0].status = 418;
    ml_fetch_now(w, &f, "POST", "/generate?a=%20b", "{\"text\": \"x\"}");
    CHECK(!f.failed && f.status == 418);
    CHECK_HAS(f.body.ptr, "{\"text\": \"hi\"}");
    CHECK_HAS(f.headers.ptr, "Content-Type: application/json\n");
    CHECK_HAS(f.headers.ptr, "Content-Length: 14\n");
    CHECK_HAS(f.headers.ptr, w->worker[0].url);
    CHECK(strcmp(w->worker[0].last.ptr,
                 "POST /generate?a=%20b|Bearer mine|7|{\"text\": \"x\"}") == 0);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "HEAD", "/x", "");
    CHECK(!f.failed && f.status == 418 && f.body.len == 0);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "DELETE", "/some/thing", "");
    CHECK(strncmp(w->worker[0].last.ptr, "DELETE /some/thing|", 19) == 0);
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void streams_in_pieces(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 2);
    ml_fetch f = { 0 };

    ml_fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(!f.failed && f.n_piece >= 4); /* as they came, not at the end */
    CHECK(strcmp(f.body.ptr, "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n"
                             "data: 5\n\n") == 0);
    CHECK_HAS(f.headers.ptr, "Content-Type: text/event-stream\n");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void client_vanishes(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    ml_fetch f = { .stop_at_data = true };

    ml_fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(f.n_piece > 0 && w->worker[0].held);
    ml_http_cancel(f.job);
    CHECK(ml_router_fixture_until(w, &w->worker[0].n_gone, 1) && !w->worker[0].held);
    ml_fetch_release(&f);
    w->worker[0].silent = true;
    ml_fetch_start(w, &f, "POST", "/generate", "{}");
    CHECK(ml_router_fixture_until(w, &w->worker[0].n_request, 2) && w->worker[0].held);
    ml_http_cancel(f.job);
    CHECK(ml_router_fixture_until(w, &w->worker[0].n_gone, 2));
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void worker_dies_in_the_middle(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    ml_fetch f = { 0 };

    w->worker[0].dies = true;
    ml_fetch_now(w, &f, "POST", "/stream", "{}");
    CHECK(!f.failed);
    CHECK(strncmp(f.body.ptr, "data: 0\n\n", 9) == 0);
    CHECK_HAS(f.body.ptr, "data: {\"error\": {\"message\": ");
    CHECK(strcmp(f.body.ptr + f.body.len - 2, "\n\n") == 0);
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "POST", "/pieces", "{}");
    CHECK(f.failed && f.done); /* cut, so that it does not look whole */
    ml_fetch_release(&f);
    ml_fetch_now(w, &f, "GET", "/metrics", "");
    CHECK_HAS(f.body.ptr, "miles_router_broken_total 2\n");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void another_worker_is_tried(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_fetch f = { 0 };
    ml_router_fixture *w;

    o.health_interval_s = 0;
    w = ml_router_fixture_open(o, 3);
    ml_fake_worker_close(&w->worker[0]);
    w->worker[1].status = 503;
    w->worker[2].reply = "third";
    ml_fetch_now(w, &f, "POST", "/generate", "{\"text\": \"x\"}");
    CHECK(!f.failed && f.status == 200);
    CHECK_HAS(f.body.ptr, "third");
    CHECK(w->worker[1].n_request == 1);
    ml_fetch_release(&f);
    /* Errors of the request itself are nobody else's. */
    w->worker[2].status = 500;
    w->worker[1].status = 400;
    for (int i = 0; i < 2; i++) {
        ml_fetch_now(w, &f, "POST", "/generate", "{}");
        CHECK(f.status == 500 || f.status == 400);
        ml_fetch_release(&f);
    }
    /* When all say so, it is the answer. */
    w->worker[1].status = w->worker[2].status = 503;
    ml_fetch_now(w, &f, "POST", "/generate", "{}");
    CHECK(f.status == 503);
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void limits(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_fetch f = { 0 }, g = { 0 };
    ml_router_fixture *w;

    o.max_concurrent = 1;
    o.request_timeout_s = 1;
    w = ml_router_fixture_open(o, 1);
    w->worker[0].silent = true;
    ml_fetch_start(w, &f, "POST", "/generate", "{}");
    CHECK(ml_router_fixture_until(w, &w->worker[0].n_request, 1));
    ml_fetch_now(w, &g, "POST", "/generate", "{}");
    CHECK(g.status == 429);
    ml_loop_run(w->loop);
    CHECK(f.status == 504);
    CHECK_HAS(f.body.ptr, "--request-timeout-secs");
    CHECK(ml_router_fixture_until(w, &w->worker[0].n_gone, 1));
    ml_fetch_release(&f);
    ml_fetch_release(&g);
    ml_router_fixture_close(w);
}

static void prompts_stay_together(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_router_fixture *w;

    o.route.kind = ML_ROUTE_CACHE_AWARE;
    o.health_interval_s = 0;
    w = ml_router_fixture_open(o, 3);
    for (int i = 0; i < 30; i++) {
        ml_fetch f = { 0 };
        char body[200];
        snprintf(body, sizeof body,
                 "{\"sampling_params\": {\"n\": %d}, \"text\": \"%c: a prompt with a long "
                 "common beginning, %d\"}",
                 i, 'a' + i % 3, i / 3);
        ml_fetch_now(w, &f, "POST", "/generate", body);
        CHECK(f.status == 200);
        ml_fetch_release(&f);
    }
    for (int i = 0; i < 3; i++)
        CHECK(w->worker[i].n_request == 10);
    ml_router_fixture_close(w);
}

static void worker_key_is_added(void) {
    ml_router_opts o = ml_router_fixture_opts();
    ml_fetch f = { .no_key = true };
    ml_router_fixture *w;

    o.worker_key = "secret";
    w = ml_router_fixture_open(o, 1);
    ml_fetch_now(w, &f, "GET", "/x", "");
    CHECK_HAS(w->worker[0].last.ptr, "|Bearer secret|");
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static void draining(void) {
    ml_router_fixture *w = ml_router_fixture_open(ml_router_fixture_opts(), 1);
    ml_fetch f = { .stop_at_data = true };

    ml_fetch_now(w, &f, "POST", "/stream", "{}");
    f.stop_at_data = false;
    ml_router_drain(w->router);
    ml_loop_run(w->loop); /* the client's end */
    CHECK(f.done && !f.failed);
    CHECK_HAS(f.body.ptr, "data: 5\n\n");
    ml_loop_run(w->loop); /* the router's */
    ml_fetch_release(&f);
    ml_router_fixture_close(w);
}

static const ml_test tests[] = {
    { "the router relays requests and replies unchanged", plain },
    { "the router relays a stream piece by piece", streams_in_pieces },
    { "a client that disconnects ends the worker's request", client_vanishes },
    { "a worker that dies in a stream ends it with an error", worker_dies_in_the_middle },
    { "a failed worker's request goes to another", another_worker_is_tried },
    { "the router limits concurrent requests and waiting", limits },
    { "requests of one prompt go to one worker", prompts_stay_together },
    { "the router adds the workers' key", worker_key_is_added },
    { "a draining router finishes its streams", draining },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
