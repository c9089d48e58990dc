#include "tests/support/router_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/test.h"

ml_router_opts ml_router_fixture_opts(void) {
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

ml_router_fixture *ml_router_fixture_open(ml_router_opts o, int n_worker) {
    ml_router_fixture *w = calloc(1, sizeof *w);
    const char *url[ML_FIXTURE_WORKERS];
    ml_err err = { 0 };

    CHECK(ml_loop_new(&w->loop, &err) == ML_OK);
    w->client = ml_http_client_new(w->loop);
    for (int i = 0; i < n_worker; i++) {
        ml_fake_worker_open(&w->worker[i], w->loop, 0);
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

void ml_router_fixture_close(ml_router_fixture *w) {
    ml_router_close(w->router);
    ml_http_client_free(w->client);
    for (int i = 0; i < ML_FIXTURE_WORKERS; i++) {
        ml_fake_worker_close(&w->worker[i]);
        ml_text_release(&w->worker[i].last);
    }
    ml_loop_free(w->loop);
    free(w);
}

static void stop(void *ud) {
    ml_loop_stop(((ml_router_fixture *)ud)->loop);
}

void ml_router_fixture_run(ml_router_fixture *w, double seconds) {
    ml_timer *t = ml_timer_start(w->loop, seconds, false, stop, w);
    ml_loop_run(w->loop);
    ml_timer_stop(t);
}

bool ml_router_fixture_until(ml_router_fixture *w, const int *counter, int n) {
    for (int i = 0; i < 2000 && *counter < n; i++)
        ml_router_fixture_run(w, 0.01);
    return *counter >= n;
}

static void got_head(void *ud, int status, ml_str headers) {
    ml_fetch *f = ud;
    f->status = status;
    ml_text_add(&f->headers, headers.ptr, headers.len);
}

static void got_data(void *ud, ml_str piece) {
    ml_fetch *f = ud;
    f->n_piece++;
    ml_text_add(&f->body, piece.ptr, piece.len);
    if (f->stop_at_data)
        ml_loop_stop(f->fixture->loop);
}

static void got_done(void *ud, const ml_err *err) {
    ml_fetch *f = ud;
    f->done = true;
    f->failed = err != NULL;
    if (err)
        f->err = *err;
    ml_loop_stop(f->fixture->loop);
}

void ml_fetch_start(ml_router_fixture *w, ml_fetch *f, const char *method, const char *path,
                    const char *body) {
    ml_text url = { 0 }, headers = { 0 };
    ml_http_fns fns = { got_head, got_data, got_done, f };
    ml_http_request r = {
        .method = method, .body = ml_str_of(body), .connect_s = 5, .idle_s = 10
    };
    ml_err err = { 0 };

    f->fixture = w;
    ml_text_add(&f->body, "", 0);
    ml_text_add(&f->headers, "", 0);
    ml_text_printf(&url, "%s%s", w->base, path);
    ml_text_printf(&headers, "%sX-Own: 7\n%s%s",
                   f->no_key ? "" : "Authorization: Bearer mine\n",
                   *body ? "Content-Type: application/json\n" : "", f->more ? f->more : "");
    r.url = url.ptr;
    r.headers = headers.ptr;
    CHECK(ml_http_start(&f->job, w->client, &r, fns, &err) == ML_OK);
    ml_text_release(&url);
    ml_text_release(&headers);
}

void ml_fetch_now(ml_router_fixture *w, ml_fetch *f, const char *method, const char *path,
                  const char *body) {
    ml_fetch_start(w, f, method, path, body);
    ml_loop_run(w->loop);
}

void ml_fetch_release(ml_fetch *f) {
    ml_text_release(&f->headers);
    ml_text_release(&f->body);
    *f = (ml_fetch){ 0 };
}
