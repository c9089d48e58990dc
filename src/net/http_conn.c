#include "net/http_conn.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_struct.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/loop_base.h"

#define LINGER_S 2.0
#define READ_AHEAD ((size_t)1 << 18) /* bytes of pipelined requests buffered here */
#define PROBE_S 0.05 /* on the same machine, a reset answers a probe within this time */
#define PROBES_S 1.0 /* interval of later checks of a probed client */
#define BODY_KEPT ((size_t)1 << 12) /* larger body buffers are freed after the call */

static size_t unsent(const ml_http_conn *c) {
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* The read timeout applies while waiting for or reading a request, not while the handler
 * works on the reply. */
static void set_deadlines(ml_http_conn *c) {
    struct timeval idle = ml_loop_timeval(c->server->limits.idle_s);
    struct timeval linger = ml_loop_timeval(LINGER_S);
    const struct timeval *read = c->state == ML_CONN_LINGER ? &linger : &idle;

    bufferevent_set_timeouts(c->bev, c->call ? NULL : read, &idle);
}

static void arm(ml_http_conn *c, double seconds) {
    struct timeval tv = ml_loop_timeval(seconds);

    if (event_add(c->clock, &tv) != 0)
        ml_http_conn_cut(c);
}

/* Returns the bytes of the body to the budget. */
static void forget_body(ml_http_conn *c) {
    if (c->server->limits.budget)
        ml_budget_give(c->server->limits.budget, c->counted);
    c->counted = 0;
}

void ml_http_conn_report(ml_http_conn *c, int status, bool complete) {
    ml_http_server *s = c->server;
    bool read = c->gate_s > 0;
    ml_http_done d = { .method = read ? c->reader.method : (ml_str){ "", 0 },
                       .path =
                           read ? (ml_str){ c->path.ptr, c->path.len } : (ml_str){ "", 0 },
                       .status = status,
                       .complete = complete,
                       .seconds = read ? ml_clock_s() - c->gate_s : 0,
                       .peer = c->peer,
                       .tag = c->tag };

    c->tag = NULL;
    c->gate_s = 0;
    if (s->observer)
        s->observer(s->observer_ud, &d);
}

/* --- the end of a connection ------------------------------------------------ */

void ml_http_conn_drop(ml_http_conn *c) {
    ml_loop_fn *gone = c->call ? c->call->gone : NULL;
    void *gone_ud = c->call ? c->call->gone_ud : NULL;

    if (c->gate_s > 0)
        ml_http_conn_report(c, c->call ? c->call->status : 0, false);
    if (c->call)
        ml_http_call_free(c->call);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->server->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->server->n_conn--;
    forget_body(c);
    event_free(c->settle);
    event_free(c->clock);
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
    if (c->server->tls)
        ml_tls_end(c->bev);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    set_deadlines(c);
}

void ml_http_conn_send(ml_http_conn *c, const char *bytes, size_t n) {
    struct linger now = { .l_onoff = 1, .l_linger = 0 };

    if (c->cut || n == 0)
        return;
    /* libevent does not report when it is out of memory to wait for the socket.  With TLS,
     * it may wait for something else. */
    if (evbuffer_add(bufferevent_get_output(c->bev), bytes, n) == 0 &&
        (c->server->tls || event_pending(&c->bev->ev_write, EV_WRITE, NULL)))
        return;
    setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ml_http_conn_cut(c);
}

/* Copies text, truncated to cap, with characters that JSON would escape replaced by '. */
static void copy_plain(char *out, size_t cap, const char *text) {
    size_t n = 0;

    for (; *text && n + 1 < cap; text++, n++)
        out[n] = *text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '\'' : *text;
    out[n] = 0;
}

/* Makes no allocations of its own: it also reports out of memory. */
static void refuse_with(ml_http_conn *c, int status, const char *headers, const char *why) {
    char plain[600], body[760], head[1200];
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "api_error";

    copy_plain(plain, sizeof plain, why);
    /* OpenAI's clients read "error", Anthropic's "type", too. */
    snprintf(body, sizeof body,
             "{\"type\": \"error\", \"error\": {\"message\": \"%s\", \"type\": \"%s\", "
             "\"code\": %d}}",
             plain, type, status);
    snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n%sConnection: close\r\n", status,
             ml_http_reason(status), headers);
    ml_http_conn_send(c, head, strlen(head));
    if (status != 204) {
        snprintf(head, sizeof head,
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                 strlen(body));
        ml_http_conn_send(c, head, strlen(head));
        ml_http_conn_send(c, body, strlen(body));
    } else {
        ml_http_conn_send(c, "\r\n", 2);
    }
    forget_body(c);
    ml_text_release(&c->body);
    c->state = ML_CONN_CLOSING;
    ml_http_conn_report(c, status, true);
}

void ml_http_conn_refuse(ml_http_conn *c, int status, const char *why) {
    refuse_with(c, status, status == 503 ? "Retry-After: 1\r\n" : "", why);
}

/* --- requests --------------------------------------------------------------- */

static int hex(char ch) {
    const char *digits = "0123456789abcdef0123456789ABCDEF";
    const char *at = ch ? strchr(digits, ch) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

/* Decodes percent escapes; false for an escaped NUL or an incomplete escape. */
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

/* "/path?query", "http://host/path?query" as sent to proxies, or "*" of OPTIONS. */
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

/* False: the gate rejected the request, and its reply was sent. */
static bool passes_gate(ml_http_conn *c) {
    const ml_http_reader *r = &c->reader;
    ml_http_head head = { .method = r->method,
                          .path = { c->path.ptr, c->path.len },
                          .has_body = r->framing == ML_HTTP_CHUNKED || r->left > 0,
                          .reader = r };
    ml_http_early answer = { 0 };

    bool passes = !c->server->gate || c->server->gate(c->server->gate_ud, &head, &answer);

    c->tag = answer.tag;
    if (passes)
        return true;
    refuse_with(c, answer.status, answer.headers, answer.why);
    return false;
}

/* False if Content-Length already exceeds the budget: such a body is not read. */
static bool body_fits(const ml_http_conn *c) {
    const ml_budget *b = c->server->limits.budget;
    const ml_http_reader *r = &c->reader;
    size_t used = b ? atomic_load(&b->used) : 0;

    return !b || !b->max || r->framing != ML_HTTP_FIXED ||
           (used <= b->max && r->left <= b->max - used);
}

static const char budget_spent[] = "too many bytes of requests in flight; try again later";

static void head_came(ml_http_conn *c) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const ml_http_reader *r = &c->reader;
    ml_str expect = ml_http_reader_field(r, "expect");

    c->body.len = 0;
    c->path.len = 0;
    c->gate_s = ml_clock_s();
    c->head_at_s = c->began_s > 0 ? ml_clock_s() : 0;
    if (!known_method(r->method))
        ml_http_conn_refuse(c, 501, "unknown method");
    else if (!split_target(c, r->target))
        ml_http_conn_refuse(c, 400, "the request target must be a path");
    else if (!passes_gate(c))
        return;
    else if (r->minor == 1 && expect.ptr && !ml_http_name_is(expect, "100-continue"))
        ml_http_conn_refuse(c, 417, "only Expect: 100-continue is supported");
    else if (!body_fits(c))
        ml_http_conn_refuse(c, 503, budget_spent);
    else if (r->minor == 1 && expect.ptr)
        ml_http_conn_send(c, go_on, sizeof go_on - 1);
}

static void data_came(ml_http_conn *c, ml_str piece) {
    ml_budget *b = c->server->limits.budget;

    if (b && !ml_budget_take(b, piece.len)) {
        ml_http_conn_refuse(c, 503, budget_spent);
        return;
    }
    c->counted += b ? piece.len : 0;
    ml_text_add(&c->body, piece.ptr, piece.len);
}

static void request_came(ml_http_conn *c) {
    c->began_s = c->head_at_s = 0;
    if (!ml_http_call_new(c)) {
        ml_http_conn_refuse(c, 503, "the server is out of memory; try again later");
        return;
    }
    set_deadlines(c);
    c->server->fn(c->server->ud, c->call);
}

void ml_http_conn_answered(ml_http_conn *c, bool keep) {
    forget_body(c);
    if (c->body.cap > BODY_KEPT)
        ml_text_release(&c->body);
    ml_http_reader_begin(&c->reader);
    set_deadlines(c);
    if (keep)
        event_active(c->settle, EV_TIMEOUT, 0);
    else
        ml_http_conn_close(c);
}

/* The first contiguous bytes of the input. */
static ml_str peek(struct evbuffer *in) {
    struct evbuffer_iovec v;

    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1)
        return (ml_str){ "", 0 };
    return (ml_str){ v.iov_base, v.iov_len };
}

/* One parser event, for ml_memory_try. */
typedef struct step {
    ml_http_conn *conn;
    ml_str rest;
    ml_http_event event;
} step;

static void take_step(void *ud) {
    step *s = ud;
    ml_str piece;

    s->event = ml_http_reader_next(&s->conn->reader, &s->rest, &piece);
    if (s->event == ML_HTTP_DATA)
        data_came(s->conn, piece);
    else if (s->event == ML_HTTP_HEAD)
        head_came(s->conn);
}

/* Parses requests and calls the handler, as long as each is answered at once. */
static void advance(ml_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);

    while (c->state == ML_CONN_OPEN && !c->call && !c->cut &&
           unsent(c) <= c->server->limits.max_unsent) {
        ml_str bytes = peek(in);
        step s = { .conn = c, .rest = bytes };

        if (!ml_memory_try(take_step, &s)) {
            ml_http_conn_refuse(c, 503, "the server is out of memory; try again later");
            return;
        }
        evbuffer_drain(in, bytes.len - s.rest.len);
        if (s.event == ML_HTTP_END)
            request_came(c);
        else if (s.event == ML_HTTP_BAD)
            ml_http_conn_refuse(c, c->reader.refusal, c->reader.why);
        else if (s.event == ML_HTTP_MORE && bytes.len == 0)
            return;
    }
}

/* --- deadlines and probes --------------------------------------------------- */

static bool is_reading(const ml_http_conn *c) {
    return c->state == ML_CONN_OPEN && !c->call && !ml_http_reader_fresh(&c->reader);
}

/* The deadline of the part (head or body) that is being read; 0: none. */
static double due_s(const ml_http_conn *c) {
    const ml_http_limits *l = &c->server->limits;

    if (c->head_at_s == 0)
        return l->head_s > 0 ? c->began_s + l->head_s : 0;
    if (l->body_s <= 0 || l->min_rate <= 0)
        return 0;
    return c->head_at_s + l->body_s + (double)c->reader.body_bytes / l->min_rate;
}

/* Sets a deadline for a request that did not arrive in one piece. */
static void watch_request(ml_http_conn *c) {
    if (!is_reading(c) || c->began_s > 0)
        return;
    c->began_s = ml_clock_s();
    c->head_at_s = ml_http_reader_has_head(&c->reader) ? c->began_s : 0;
    if (due_s(c) > 0)
        arm(c, due_s(c) - c->began_s);
}

static void check_request(ml_http_conn *c) {
    double left = due_s(c) - ml_clock_s();

    if (due_s(c) == 0)
        return;
    if (left > 0) {
        arm(c, left);
        return;
    }
    ml_http_conn_refuse(c, 408,
                        c->head_at_s > 0 ? "timed out reading the request body"
                                         : "timed out reading the request headers");
    event_active(c->settle, EV_TIMEOUT, 0);
}

/* A client that has closed its socket answers any byte with a reset.  A client that has
 * only shut down its sending side skips an interim reply, or a leading zero of the next
 * chunk size.  If neither can be sent, the next write shows it. */
void ml_http_conn_probe(ml_http_conn *c) {
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (c->call->begun && c->call->chunked)
        ml_http_conn_send(c, "0", 1);
    else if (c->reader.minor == 1 && !c->call->begun)
        ml_http_conn_send(c, interim, sizeof interim - 1);
    arm(c, PROBE_S);
}

static void check_probed(ml_http_conn *c) {
    int why = 0;
    socklen_t n = sizeof why;

    if (getsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_ERROR, &why, &n) == 0 && why)
        ml_http_conn_drop(c);
    else
        arm(c, PROBES_S);
}

static void on_clock(evutil_socket_t fd, short what, void *ud) {
    ml_http_conn *c = ud;

    (void)fd;
    (void)what;
    if (c->handshake)
        ml_http_conn_drop(c);
    else if (c->call && c->eof)
        check_probed(c);
    else if (is_reading(c) && c->began_s > 0)
        check_request(c);
}

/* --- events ----------------------------------------------------------------- */

/* Acts on a connection's state and flags. */
static void settle(ml_http_conn *c) {
    if (c->cut) {
        ml_http_conn_drop(c);
        return;
    }
    advance(c);
    watch_request(c);
    if (c->eof && !c->call && c->state == ML_CONN_OPEN)
        c->state = ML_CONN_CLOSING; /* no more requests */
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

    if (what & BEV_EVENT_CONNECTED) { /* the handshake is complete */
        c->handshake = false;
        event_del(c->clock);
        return;
    }
    if (what & BEV_EVENT_TIMEOUT && what & BEV_EVENT_READING && unsent(c)) {
        if (bufferevent_enable(bev, EV_READ) != 0) /* still sending to it: not idle */
            ml_http_conn_drop(c);
        return;
    }
    if (what & BEV_EVENT_EOF && !c->cut && (c->call || unsent(c))) {
        c->eof = true; /* it sends no more, but may still read */
        if (c->call)
            ml_http_conn_probe(c);
        else
            c->state = ML_CONN_CLOSING;
        return;
    }
    ml_http_conn_drop(c);
}

static bool take_parts(ml_http_conn *c, ml_http_server *s, int fd) {
    struct event_base *base = ml_loop_base(s->loop);

    c->settle = event_new(base, -1, 0, on_settle, c);
    c->clock = event_new(base, -1, 0, on_clock, c);
    if (c->settle && c->clock)
        c->bev = s->tls ? ml_tls_accept(s->tls, base, fd)
                        : bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    return c->bev != NULL;
}

/* Returns NULL if out of memory. */
static ml_http_conn *new_conn(ml_http_server *s, int fd) {
    ml_http_conn *c = ml_net_take(sizeof *c);

    if (c && !take_parts(c, s, fd)) {
        if (c->settle)
            event_free(c->settle);
        if (c->clock)
            event_free(c->clock);
        free(c);
        c = NULL;
    }
    return c;
}

void ml_http_conn_open(ml_http_server *s, int fd, const char *peer) {
    ml_http_conn *c = new_conn(s, fd);
    int one = 1;

    if (!c) {
        close(fd);
        return;
    }
    c->server = s;
    c->next = s->first;
    if (s->first)
        s->first->prev = c;
    s->first = c;
    s->n_conn++;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    ml_http_reader_init(&c->reader, false, s->limits.max_header, s->limits.max_body);
    /* Send each token at once, without waiting to fill a packet (Nagle's algorithm). */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(c->bev, on_ready, on_ready, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, READ_AHEAD);
    set_deadlines(c);
    /* Reading stays enabled while the handler works, to detect a disconnect. */
    if (bufferevent_enable(c->bev, EV_READ | EV_WRITE) != 0) {
        ml_http_conn_drop(c);
        return;
    }
    c->handshake = s->tls != NULL;
    if (c->handshake && s->limits.head_s > 0)
        arm(c, s->limits.head_s);
    if (s->n_conn > s->limits.max_connections) {
        ml_http_conn_refuse(c, 503, "too many connections");
        event_active(c->settle, EV_TIMEOUT, 0);
    }
}
