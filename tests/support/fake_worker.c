#include "tests/support/fake_worker.h"

#include <stdio.h>

#include "tests/support/test.h"

static void held_gone(void *ud) {
    ml_fake_worker *f = ud;
    f->held = NULL;
    f->n_gone++;
    ml_timer_stop(f->timer);
    f->timer = NULL;
}

static void next_piece(void *ud) {
    ml_fake_worker *f = ud;
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

static void begin_stream(ml_fake_worker *f, ml_http_call *c, const char *type) {
    f->held = c;
    f->n_piece = 0;
    ml_http_on_gone(c, held_gone, f);
    ml_http_begin(c, 200, type);
    f->timer = ml_timer_start(f->loop, 0.005, true, next_piece, f);
}

static void remember(ml_fake_worker *f, const ml_http_call *c) {
    ml_str m = ml_http_method(c), t = ml_http_target(c), b = ml_http_body(c);
    ml_str auth = ml_http_header(c, "authorization"), own = ml_http_header(c, "x-own");

    f->last.len = 0;
    ml_text_printf(&f->last, "%.*s %.*s|%.*s|%.*s|%.*s", (int)m.len, m.ptr, (int)t.len,
                   t.ptr, (int)auth.len, auth.ptr, (int)own.len, own.ptr, (int)b.len,
                   b.ptr);
}

static void work(void *ud, ml_http_call *c) {
    ml_fake_worker *f = ud;
    ml_str path = ml_http_path(c);

    if (ml_str_is(path, "/health")) {
        ml_str key = ml_http_header(c, "authorization");
        f->n_health++;
        snprintf(f->health_key, sizeof f->health_key, "%.*s", (int)key.len,
                 key.ptr ? key.ptr : "");
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

void ml_fake_worker_open(ml_fake_worker *f, ml_loop *l, int port) {
    static const ml_http_limits limits = { 8192, 1 << 20, 100, 60, 1 << 20 };
    ml_err err = { 0 };

    f->loop = l;
    if (ml_http_server_open(&f->server, l, "127.0.0.1", port, limits, work, f, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    f->status = 200;
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", ml_http_server_port(f->server));
}

void ml_fake_worker_close(ml_fake_worker *f) {
    ml_http_server_close(f->server);
    f->server = NULL;
}
