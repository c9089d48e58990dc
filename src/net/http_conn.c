#include "net/http_conn.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "net/loop_base.h"

#define LINGER_S 2.0
#define READ_AHEAD ((size_t)1 << 18) /* bytes of later requests that may wait here */
#define BODY_KEPT ((size_t)1 << 16)  /* larger bodies are given back after their call */

static size_t unsent(const ml_http_conn *c) {
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* Silence counts while a request is awaited or read, not while its answer is made. */
static void set_deadlines(ml_http_conn *c) {
    struct timeval idle = ml_loop_timeval(c->server->limits.idle_s);
    struct timeval linger = ml_loop_timeval(LINGER_S);
    const struct timeval *read = c->state == ML_CONN_LINGER ? &linger : &idle;

    bufferevent_set_timeouts(c->bev, c->call ? NULL : read, &idle);
}

/* --- the end of a connection ------------------------------------------------ */

void ml_http_conn_drop(ml_http_conn *c) {
    ml_loop_fn *gone = c->call ? c->call->gone : NULL;
    void *gone_ud = c->call ? c->call->gone_ud : NULL;

    if (c->call)
        ml_http_call_free(c->call);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->server->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->server->n_conn--;
    event_free(c->settle);
    bufferevent_free(c->bev);
    ml_http_reader_release(&c->reader);
    ml_text_release(&c->path);
    ml_text_release(&c->body);
    free(c);
    if (gone)
        gone(gone_ud);
}

void ml_http_conn_cut(ml_http_conn *c) {
    c->cut = true;
    event_active(c->settle, EV_TIMEOUT, 0);
}

void ml_http_conn_close(ml_http_conn *c) {
    c->state = ML_CONN_CLOSING;
    event_active(c->settle, EV_TIMEOUT, 0);
}

static void linger(ml_http_conn *c) {
    c->state = ML_CONN_LINGER;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    set_deadlines(c);
}

static void refuse_with(ml_http_conn *c, int status, const char *headers, const char *why) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    ml_text body = { 0 };

    ml_text_printf(&body, "{\"error\": {\"message\": ");
    ml_json_quote(&body, ml_str_of(why));
    ml_text_printf(&body, ", \"code\": %d}}", status);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n%sConnection: close\r\n", status,
                        ml_http_reason(status), headers);
    if (status == 204)
        evbuffer_add_printf(out, "\r\n");
    else
        evbuffer_add_printf(out,
                            "Content-Type: application/json\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            body.len, body.ptr);
    ml_text_release(&body);
    c->state = ML_CONN_CLOSING;
}

void ml_http_conn_refuse(ml_http_conn *c, int status, const char *why) {
    refuse_with(c, status, "", why);
}

/* --- requests --------------------------------------------------------------- */

static int hex(char ch) {
    const char *digits = "0123456789abcdef0123456789ABCDEF";
    const char *at = ch ? strchr(digits, ch) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

/* %41 is A; a NUL or half an escape is no path. */
static bool decode_path(ml_text *out, ml_str path) {
    out->len = 0;
    for (size_t i = 0; i < path.len; i++) {
        char ch = path.ptr[i];
        if (ch == '%') {
            int hi = i + 2 < path.len ? hex(path.ptr[i + 1]) : -1;
            int lo = i + 2 < path.len ? hex(path.ptr[i + 2]) : -1;
            if (hi < 0 || lo < 0 || hi + lo == 0)
                return false;
            ch = (char)(hi * 16 + lo);
            i += 2;
        }
        ml_text_add(out, &ch, 1);
    }
    return true;
}

/* "/path?query", "http://host/path?query" as proxies are asked, or "*" of OPTIONS. */
static bool split_target(ml_http_conn *c, ml_str target) {
    const char *at;

    if (target.len >= 7 && memcmp(target.ptr, "http://", 7) == 0) {
        at = memchr(target.ptr + 7, '/', target.len - 7);
        if (!at)
            return false;
        target.len -= (size_t)(at - target.ptr);
        target.ptr = at;
    }
    if (target.ptr[0] != '/' && !ml_str_is(target, "*"))
        return false;
    c->target = target;
    at = memchr(target.ptr, '?', target.len);
    c->query = (ml_str){ "", 0 };
    if (at) {
        c->query = (ml_str){ at + 1, target.len - (size_t)(at - target.ptr) - 1 };
        target.len = (size_t)(at - target.ptr);
    }
    return decode_path(&c->path, target);
}

static bool known_method(ml_str method) {
    static const char *const names[] = { "GET",    "HEAD",  "POST",    "PUT",
                                         "DELETE", "PATCH", "OPTIONS", NULL };
    for (int i = 0; names[i]; i++)
        if (ml_str_is(method, names[i]))
            return true;
    return false;
}

ml_str ml_http_head_field(const ml_http_head *h, const char *name) {
    return ml_http_reader_field(h->reader, name);
}

bool ml_http_head_field_at(const ml_http_head *h, int i, ml_str *name, ml_str *value) {
    if (i >= h->reader->n_field)
        return false;
    *name = h->reader->field[i].name;
    *value = h->reader->field[i].value;
    return true;
}

/* False: the gate has answered. */
static bool passes_gate(ml_http_conn *c) {
    const ml_http_reader *r = &c->reader;
    ml_http_head head = { .method = r->method,
                          .path = { c->path.ptr, c->path.len },
                          .has_body = r->framing == ML_HTTP_CHUNKED || r->left > 0,
                          .reader = r };
    ml_http_early answer = { 0 };

    if (!c->server->gate || c->server->gate(c->server->gate_ud, &head, &answer))
        return true;
    refuse_with(c, answer.status, answer.headers, answer.why);
    return false;
}

static void head_came(ml_http_conn *c) {
    const ml_http_reader *r = &c->reader;

    c->body.len = 0;
    if (!known_method(r->method))
        ml_http_conn_refuse(c, 501, "this server does not know the method");
    else if (!split_target(c, r->target))
        ml_http_conn_refuse(c, 400, "the target of the request is not a path");
    else if (passes_gate(c) && r->minor == 1 &&
             ml_http_name_is(ml_http_reader_field(r, "expect"), "100-continue"))
        evbuffer_add_printf(bufferevent_get_output(c->bev),
                            "HTTP/1.1 100 Continue\r\n\r\n");
}

static void request_came(ml_http_conn *c) {
    ml_http_call_new(c);
    set_deadlines(c);
    c->server->fn(c->server->ud, c->call);
}

void ml_http_conn_answered(ml_http_conn *c, bool keep) {
    if (c->body.cap > BODY_KEPT)
        ml_text_release(&c->body);
    ml_http_reader_begin(&c->reader);
    set_deadlines(c);
    if (keep)
        event_active(c->settle, EV_TIMEOUT, 0);
    else
        ml_http_conn_close(c);
}

/* The bytes that lie in one piece at the front of the input. */
static ml_str peek(struct evbuffer *in) {
    struct evbuffer_iovec v;

    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1)
        return (ml_str){ "", 0 };
    return (ml_str){ v.iov_base, v.iov_len };
}

/* Reads requests and hands them out, as long as each is answered at once. */
static void advance(ml_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);

    while (c->state == ML_CONN_OPEN && !c->call && !c->cut &&
           unsent(c) <= c->server->limits.max_unsent) {
        ml_str bytes = peek(in), rest = bytes, piece;
        ml_http_event e = ml_http_reader_next(&c->reader, &rest, &piece);

        if (e == ML_HTTP_DATA)
            ml_text_add(&c->body, piece.ptr, piece.len);
        evbuffer_drain(in, bytes.len - rest.len);
        switch (e) {
        case ML_HTTP_HEAD: head_came(c); break;
        case ML_HTTP_DATA: break;
        case ML_HTTP_END: request_came(c); break;
        case ML_HTTP_BAD: ml_http_conn_refuse(c, c->reader.refusal, c->reader.why); break;
        case ML_HTTP_MORE:
            if (bytes.len == 0)
                return;
        }
    }
}

/* --- events ----------------------------------------------------------------- */

/* Brings a connection to where its state and its marks say it should be. */
static void settle(ml_http_conn *c) {
    if (c->cut) {
        ml_http_conn_drop(c);
        return;
    }
    advance(c);
    if (c->state != ML_CONN_OPEN)
        evbuffer_drain(bufferevent_get_input(c->bev), SIZE_MAX);
    if (c->state != ML_CONN_CLOSING || unsent(c))
        return;
    if (c->eof)
        ml_http_conn_drop(c);
    else
        linger(c);
}

static void on_settle(evutil_socket_t fd, short what, void *ud) {
    (void)fd;
    (void)what;
    settle(ud);
}

static void on_ready(struct bufferevent *bev, void *ud) {
    (void)bev;
    settle(ud);
}

static void on_event(struct bufferevent *bev, short what, void *ud) {
    ml_http_conn *c = ud;

    if (what & BEV_EVENT_TIMEOUT && what & BEV_EVENT_READING && unsent(c)) {
        bufferevent_enable(bev, EV_READ); /* it receives, so it is not idle */
        return;
    }
    if (what & BEV_EVENT_EOF && !c->call && unsent(c) && !c->cut) {
        c->eof = true; /* it will send no more, but may still read */
        c->state = ML_CONN_CLOSING;
        return;
    }
    ml_http_conn_drop(c);
}

void ml_http_conn_open(ml_http_server *s, int fd, const char *peer) {
    ml_http_conn *c = ml_net_take(sizeof *c);
    struct event_base *base = ml_loop_base(s->loop);
    int one = 1;

    c->bev = ml_net_must(bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE));
    c->settle = ml_net_must(event_new(base, -1, 0, on_settle, c));
    c->server = s;
    c->next = s->first;
    if (s->first)
        s->first->prev = c;
    s->first = c;
    s->n_conn++;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    ml_http_reader_init(&c->reader, false, s->limits.max_header, s->limits.max_body);
    /* Tokens leave when they are there, not when a packet is full. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(c->bev, on_ready, on_ready, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, READ_AHEAD);
    set_deadlines(c);
    /* Reading stays on while an answer is made: it is how a vanished client is noticed. */
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (s->n_conn > s->limits.max_connections) {
        ml_http_conn_refuse(c, 503, "this server has as many connections as it takes");
        event_active(c->settle, EV_TIMEOUT, 0);
    }
}
