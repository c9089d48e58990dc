#include "tests/support/http_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/test.h"

const ml_http_limits ml_http_fixture_limits = { .max_header = 4096,
                                                .max_body = 100000,
                                                .max_connections = 50,
                                                .idle_s = 20,
                                                .max_unsent = 1 << 20 };

static void *run_loop(void *ud) {
    ml_loop_run(ud);
    return NULL;
}

static void gone(void *ud) {
    atomic_fetch_add(&((ml_http_fixture *)ud)->n_gone, 1);
}

static void held_gone(void *ud) {
    ml_http_fixture *s = ud;
    s->held = NULL;
    gone(s);
}

static void answer_later(void *ud) {
    ml_http_reply(ud, 200, "text/plain", ml_str_of("later"));
}

typedef struct later {
    ml_http_fixture *fixture;
    ml_http_call *call;
} later;

static void *other_thread(void *ud) {
    later *l = ud;
    usleep(2000);
    ml_loop_post(l->fixture->loop, answer_later, l->call);
    free(l);
    return NULL;
}

static void start_later(ml_http_fixture *s, ml_http_call *c) {
    later *l = malloc(sizeof *l);
    pthread_t t;
    *l = (later){ s, c };
    pthread_create(&t, NULL, other_thread, l);
    pthread_detach(t);
}

void ml_http_answer_pieces(ml_http_call *c) {
    ml_http_begin(c, 200, "text/event-stream");
    for (int i = 0; i < 5; i++) {
        char piece[32];
        snprintf(piece, sizeof piece, "piece %d,", i);
        ml_http_write(c, ml_str_of(piece));
    }
    ml_http_end(c);
}

static void stream(ml_http_call *c) {
    ml_http_add_header(c, "X-Break", "a\r\nX-Evil: b");
    ml_http_answer_pieces(c);
}

static void describe(ml_http_call *c) {
    ml_text t = { 0 };
    ml_str agent = ml_http_header(c, "user-agent"), name, value;
    ml_str m = ml_http_method(c), p = ml_http_path(c), q = ml_http_query(c);
    int n = 0;

    while (ml_http_header_at(c, n, &name, &value))
        n++;
    ml_text_printf(&t, "%.*s|%.*s|%.*s|%s%.*s|%d|%.*s", (int)m.len, m.ptr, (int)p.len,
                   p.ptr, (int)q.len, q.ptr, agent.ptr ? "" : "none", (int)agent.len,
                   agent.ptr, n, (int)ml_http_peer(c).len, ml_http_peer(c).ptr);
    ml_http_reply(c, 200, "text/plain", (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

static void flood(ml_http_fixture *s, ml_http_call *c) {
    static char lots[1 << 16];
    ml_http_on_gone(c, gone, s);
    ml_http_begin(c, 200, "text/plain");
    /* More than the kernel's buffers and max_unsent together. */
    for (int i = 0; i < 400; i++)
        ml_http_write(c, (ml_str){ lots, sizeof lots });
}

static void hold(ml_http_fixture *s, ml_http_call *c, bool begin) {
    s->held = c;
    ml_http_on_gone(c, held_gone, s);
    if (begin) {
        ml_http_begin(c, 200, "text/plain");
        ml_http_write(c, ml_str_of("first"));
    }
}

static void handle(void *ud, ml_http_call *c) {
    ml_http_fixture *s = ud;
    ml_str path = ml_http_path(c);

    atomic_fetch_add(&s->n_call, 1);
    if (ml_str_is(path, "/echo"))
        ml_http_reply(c, 200, "text/plain", ml_http_body(c));
    else if (ml_str_is(path, "/stream"))
        stream(c);
    else if (ml_str_is(path, "/later"))
        start_later(s, c);
    else if (ml_str_is(path, "/hold"))
        hold(s, c, false);
    else if (ml_str_is(path, "/hold-begun"))
        hold(s, c, true);
    else if (ml_str_is(path, "/flood"))
        flood(s, c);
    else if (ml_str_is(path, "/counted")) {
        ml_http_add_header(c, "Content-Length", "10");
        ml_http_begin(c, 200, NULL);
        ml_http_write(c, ml_str_of("12345"));
        ml_http_write(c, ml_str_of("67890"));
        ml_http_end(c);
    } else if (ml_str_is(path, "/short")) {
        ml_http_add_header(c, "Content-Length", "10");
        ml_http_begin(c, 200, NULL);
        ml_http_write(c, ml_str_of("12345"));
        ml_http_end(c);
    } else if (ml_str_is(path, "/abort")) {
        ml_http_begin(c, 200, NULL);
        ml_http_write(c, ml_str_of("half"));
        ml_http_abort(c);
    } else if (ml_str_is(path, "/empty"))
        ml_http_reply(c, 204, NULL, ml_str_of(""));
    else
        describe(c);
}

ml_http_fixture *ml_http_fixture_open(ml_http_limits limits) {
    ml_http_fixture *s = calloc(1, sizeof *s);
    ml_err err = { 0 };

    CHECK(ml_loop_new(&s->loop, &err) == ML_OK);
    if (ml_http_server_open(&s->server, s->loop, "127.0.0.1", 0, limits, handle, s, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
    s->port = ml_http_server_port(s->server);
    CHECK(s->port > 0);
    pthread_create(&s->thread, NULL, run_loop, s->loop);
    return s;
}

void ml_http_fixture_close(ml_http_fixture *s) {
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    ml_http_server_close(s->server);
    ml_loop_free(s->loop);
    free(s);
}
