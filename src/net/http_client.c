#include "net/http_client.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/http_reader.h"
#include "net/http_url.h"
#include "net/loop_base.h"
#include "net/tls.h"

#define MAX_HEADER ((size_t)1 << 20) /* of a reply */
#define MAX_IDLE 512                 /* connections kept for reuse; the oldest is evicted */

/* A machine that is switched off, or a network failure, sends no reset: the kernel breaks
 * the connection if nothing was acknowledged for this long. */
enum { KEEPALIVE_IDLE_S = 30, KEEPALIVE_INTERVAL_S = 10, KEEPALIVE_PROBES = 3 };
enum {
    USER_TIMEOUT_MS = 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES)
};

/* A connection to a server.  It serves one job, or is idle. */
typedef struct peer {
    ml_http_client *client;
    struct peer *prev, *next; /* of idle connections, newest first */
    struct bufferevent *bev;
    ml_http_job *job; /* NULL: idle, or to be closed */
    ml_http_reader reader;
    bool connected;
    bool used;    /* has served an earlier job */
    bool idle;    /* in the client's idle list */
    bool reading; /* inside read_reply, which closes it when it returns */
    bool tls;
    int port;
    char host[];
} peer;

struct ml_http_job {
    ml_http_client *client;
    ml_http_job *prev, *next;
    ml_http_fns fns;
    char *name;      /* "POST http://...", for messages */
    ml_http_url url; /* parsed from name */
    ml_text request; /* the bytes to send */
    bool bodyless;   /* the reply has no body, because the method is HEAD */
    bool answered;   /* the head of the reply has arrived */
    double connect_s, idle_s, total_s;
    size_t max_body;
    struct event *event; /* starts the job; then the connect timeout; then total_s */
    peer *peer;          /* NULL before the job starts */
};

struct ml_http_client {
    ml_loop *loop;
    struct evdns_base *dns;
    ml_tls *tls; /* NULL until the first https URL */
    ml_http_job *jobs;
    peer *idle;
    int n_idle;
};

static void begin(ml_http_job *j);

/* --- connections ------------------------------------------------------------ */

static void unlink_idle(peer *p) {
    ml_http_client *c = p->client;

    if (!p->idle)
        return;
    if (p->prev)
        p->prev->next = p->next;
    else
        c->idle = p->next;
    if (p->next)
        p->next->prev = p->prev;
    p->prev = p->next = NULL;
    p->idle = false;
    c->n_idle--;
}

static void close_peer(peer *p) {
    p->job = NULL;
    if (p->reading)
        return;
    unlink_idle(p);
    bufferevent_free(p->bev);
    ml_http_reader_release(&p->reader);
    free(p);
}

static void close_oldest(ml_http_client *c) {
    peer *p = c->idle;

    while (p->next)
        p = p->next;
    close_peer(p);
}

static void keep_peer(peer *p) {
    ml_http_client *c = p->client;

    if (c->n_idle == MAX_IDLE)
        close_oldest(c);
    c->n_idle++;
    p->job = NULL;
    p->used = p->idle = true;
    bufferevent_set_timeouts(p->bev, NULL, NULL);
    p->next = c->idle;
    if (c->idle)
        c->idle->prev = p;
    c->idle = p;
}

static peer *take_idle(ml_http_client *c, const ml_http_url *url) {
    for (peer *p = c->idle; p; p = p->next)
        if (p->port == url->port && p->tls == url->tls && strcmp(p->host, url->host) == 0) {
            unlink_idle(p);
            return p;
        }
    return NULL;
}

/* --- the end of a job ------------------------------------------------------- */

static void free_job(ml_http_job *j) {
    if (j->prev)
        j->prev->next = j->next;
    else
        j->client->jobs = j->next;
    if (j->next)
        j->next->prev = j->prev;
    event_free(j->event);
    ml_text_release(&j->request);
    free(j->name);
    free(j);
}

/* err NULL: success; the caller has already kept the connection, or it is closed here. */
static void finish(ml_http_job *j, const ml_err *err) {
    ml_http_fns fns = j->fns;

    if (j->peer)
        close_peer(j->peer);
    free_job(j);
    fns.done(fns.ud, err);
}

static void fail(ml_http_job *j, ml_status code, const char *what) {
    ml_err err;

    ml_fail(&err, code, "%s: %s", j->name, what);
    finish(j, &err);
}

/* The server may close an idle connection just as the client reuses it.  If no byte of a
 * reply has arrived, the job is retried on another connection. */
static bool begin_again(ml_http_job *j) {
    if (!j->peer->used || !ml_http_reader_fresh(&j->peer->reader) || j->answered)
        return false;
    close_peer(j->peer);
    j->peer = NULL;
    begin(j);
    return true;
}

/* --- the reply -------------------------------------------------------------- */

static void reply_head(peer *p) {
    ml_http_job *j = p->job;
    ml_text lines = { 0 };

    j->answered = true;
    ml_text_add(&lines, "", 0);
    for (int i = 0; i < p->reader.n_field; i++) {
        const ml_http_field *f = &p->reader.field[i];
        ml_text_printf(&lines, "%.*s: %.*s\n", (int)f->name.len, f->name.ptr,
                       (int)f->value.len, f->value.ptr);
    }
    if (j->fns.head)
        j->fns.head(j->fns.ud, p->reader.status, (ml_str){ lines.ptr, lines.len });
    ml_text_release(&lines);
}

static void reply_end(peer *p) {
    ml_http_job *j = p->job;
    bool clean = evbuffer_get_length(bufferevent_get_input(p->bev)) == 0 &&
                 evbuffer_get_length(bufferevent_get_output(p->bev)) == 0;

    if (ml_http_reader_keeps_alive(&p->reader) && clean) {
        keep_peer(p);
        j->peer = NULL;
    }
    finish(j, NULL);
}

static void reply_broken(peer *p) {
    ml_err err;

    if (p->reader.refusal == 413)
        ml_fail(&err, ML_EFORMAT, "%s: the reply exceeds the limit of %zu bytes",
                p->job->name, p->reader.max_body);
    else
        ml_fail(&err, ML_EFORMAT, "%s: the reply is not HTTP: %s", p->job->name,
                p->reader.why);
    finish(p->job, &err);
}

static ml_str peek(struct evbuffer *in) {
    struct evbuffer_iovec v;

    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1)
        return (ml_str){ "", 0 };
    return (ml_str){ v.iov_base, v.iov_len };
}

/* Each callback made here may end the job, start others or cancel any; `reading` keeps them
 * from freeing this peer, and no other job gets it before this function returns. */
static void read_reply(peer *p) {
    struct evbuffer *in = bufferevent_get_input(p->bev);

    p->reading = true;
    while (p->job) {
        ml_str bytes = peek(in), rest = bytes, piece;
        ml_http_event e = ml_http_reader_next(&p->reader, &rest, &piece);

        if (e == ML_HTTP_MORE && bytes.len == 0)
            break;
        if (e == ML_HTTP_DATA && p->job->fns.data)
            p->job->fns.data(p->job->fns.ud, piece);
        evbuffer_drain(in, bytes.len - rest.len);
        if (!p->job)
            break;
        if (e == ML_HTTP_HEAD)
            reply_head(p);
        else if (e == ML_HTTP_END)
            reply_end(p);
        else if (e == ML_HTTP_BAD)
            reply_broken(p);
    }
    p->reading = false;
    if (!p->job && !p->idle)
        close_peer(p);
}

/* --- events of a connection ------------------------------------------------- */

static void on_read(struct bufferevent *bev, void *ud) {
    peer *p = ud;

    (void)bev;
    if (p->job)
        read_reply(p);
    else
        close_peer(p); /* data without a request */
}

static void set_deadlines(peer *p) {
    struct timeval idle = ml_loop_timeval(p->job->idle_s);
    struct timeval total = ml_loop_timeval(p->job->total_s);

    if (p->job->idle_s > 0)
        bufferevent_set_timeouts(p->bev, &idle, &idle);
    if (p->job->total_s > 0)
        event_add(p->job->event, &total);
}

static void set_options(evutil_socket_t fd) {
    static const struct {
        int level, name, value;
    } option[] = {
        { IPPROTO_TCP, TCP_NODELAY, 1 },
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S },
        { IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S },
        { IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES },
        { IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS },
    };

    for (size_t i = 0; i < sizeof option / sizeof *option; i++)
        setsockopt(fd, option[i].level, option[i].name, &option[i].value,
                   sizeof option[i].value);
}

static void connected(peer *p) {
    p->connected = true;
    event_del(p->job->event);
    set_options(bufferevent_getfd(p->bev));
    set_deadlines(p);
    bufferevent_enable(p->bev, EV_READ | EV_WRITE);
}

static void on_timeout(peer *p, short what) {
    char text[80];

    if (what & BEV_EVENT_READING && evbuffer_get_length(bufferevent_get_output(p->bev))) {
        bufferevent_enable(p->bev, EV_READ); /* the server still receives: not idle */
        return;
    }
    snprintf(text, sizeof text, "the server sent nothing for %g s", p->job->idle_s);
    fail(p->job, ML_EPEER, text);
}

static void on_eof(peer *p) {
    if (p->job->answered && ml_http_reader_eof(&p->reader))
        finish(p->job, NULL);
    else if (p->job->answered)
        fail(p->job, ML_EPEER,
             "the server closed the connection in the middle of its reply");
    else if (!begin_again(p->job))
        fail(p->job, ML_EPEER, "the server closed the connection without a reply");
}

static void on_error(peer *p, short what) {
    int error = EVUTIL_SOCKET_ERROR(), dns = bufferevent_socket_get_dns_error(p->bev);
    char text[400], tls[300];

    if (!p->connected) {
        snprintf(text, sizeof text, "cannot connect: %s",
                 p->tls && ml_tls_error(p->bev, tls, sizeof tls) ? tls
                 : dns                                           ? evutil_gai_strerror(dns)
                 : error ? evutil_socket_error_to_string(error)
                         : "the server closed the connection");
        fail(p->job, ML_EPEER, text);
    } else if (what & BEV_EVENT_WRITING) {
        /* The server may already have replied, for example that the body is too large. */
        bufferevent_disable(p->bev, EV_WRITE);
        evbuffer_drain(bufferevent_get_output(p->bev), SIZE_MAX);
    } else if (!begin_again(p->job)) {
        snprintf(text, sizeof text, "the connection broke: %s",
                 p->tls && ml_tls_error(p->bev, tls, sizeof tls)
                     ? tls
                     : evutil_socket_error_to_string(error));
        fail(p->job, ML_EPEER, text);
    }
}

static void on_event(struct bufferevent *bev, short what, void *ud) {
    peer *p = ud;

    (void)bev;
    if (!p->job)
        close_peer(p);
    else if (what & BEV_EVENT_CONNECTED)
        connected(p);
    else if (what & BEV_EVENT_TIMEOUT)
        on_timeout(p, what);
    else if (what & BEV_EVENT_EOF)
        on_eof(p);
    else
        on_error(p, what);
}

/* --- the beginning of a job ------------------------------------------------- */

static peer *new_peer(ml_http_client *c, const ml_http_url *url) {
    size_t n = strlen(url->host) + 1;
    peer *p = ml_net_take(sizeof *p + n);

    p->client = c;
    p->port = url->port;
    p->tls = url->tls;
    memcpy(p->host, url->host, n);
    p->bev = url->tls ? ml_tls_connect(c->tls, ml_loop_base(c->loop), url->host)
                      : ml_net_must(bufferevent_socket_new(ml_loop_base(c->loop), -1,
                                                           BEV_OPT_CLOSE_ON_FREE));
    bufferevent_setcb(p->bev, on_read, NULL, on_event, p);
    ml_http_reader_init(&p->reader, true, MAX_HEADER, SIZE_MAX);
    return p;
}

static void begin(ml_http_job *j) {
    struct timeval deadline = ml_loop_timeval(j->connect_s);
    peer *p = take_idle(j->client, &j->url);

    if (!p)
        p = new_peer(j->client, &j->url);
    p->job = j;
    j->peer = p;
    ml_http_reader_begin(&p->reader);
    p->reader.bodyless = j->bodyless;
    p->reader.max_body = j->max_body ? j->max_body : SIZE_MAX;
    evbuffer_add(bufferevent_get_output(p->bev), j->request.ptr, j->request.len);
    if (p->connected) {
        set_deadlines(p);
        return;
    }
    if (j->connect_s > 0)
        event_add(j->event, &deadline);
    /* This call may report an error through on_event, which ends the job. */
    bufferevent_socket_connect_hostname(p->bev, j->client->dns, AF_UNSPEC, p->host,
                                        p->port);
}

/* A job's event fires to start it, and when the connect or total timeout expires. */
static void on_job(evutil_socket_t fd, short what, void *ud) {
    ml_http_job *j = ud;
    char text[80];

    (void)fd;
    (void)what;
    if (!j->peer) {
        begin(j);
        return;
    }
    if (j->peer->connected)
        snprintf(text, sizeof text, "the reply was not complete within %g s", j->total_s);
    else
        snprintf(text, sizeof text, "cannot connect within %g s", j->connect_s);
    fail(j, ML_EPEER, text);
}

/* Adds the caller's header lines with CR LF line ends. */
static void add_headers(ml_text *out, const char *lines) {
    while (lines && *lines) {
        size_t n = strcspn(lines, "\r\n");
        if (n)
            ml_text_printf(out, "%.*s\r\n", (int)n, lines);
        lines += n + (lines[n] != 0);
    }
}

static void write_request(ml_http_job *j, const ml_http_request *r) {
    const char *target = j->url.target;
    bool v6 = strchr(j->url.host, ':') != NULL;
    bool asks = ml_str_is(ml_str_of(r->method), "GET") || j->bodyless;

    ml_text_printf(&j->request, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%d\r\n", r->method,
                   *target == '/' ? "" : "/", target, v6 ? "[" : "", j->url.host,
                   v6 ? "]" : "", j->url.port);
    if (r->body.len || !asks)
        ml_text_printf(&j->request, "Content-Length: %zu\r\n", r->body.len);
    add_headers(&j->request, r->headers);
    ml_text_add(&j->request, "\r\n", 2);
    ml_text_add(&j->request, r->body.ptr, r->body.len);
}

ml_status ml_http_start(ml_http_job **out, ml_http_client *c, const ml_http_request *r,
                        ml_http_fns fns, ml_err *err) {
    ml_http_url url;
    ml_text name = { 0 };
    ml_http_job *j;
    ml_status st;

    ml_text_printf(&name, "%s %s", r->method, r->url);
    st = ml_http_url_split(&url, name.ptr + strlen(r->method) + 1, err);
    if (st == ML_OK && url.tls && !c->tls)
        st = ml_tls_client_new(&c->tls, err);
    if (st != ML_OK) {
        ml_text_release(&name);
        return st;
    }
    j = ml_net_take(sizeof *j);
    *j = (ml_http_job){ .client = c,
                        .next = c->jobs,
                        .fns = fns,
                        .name = name.ptr,
                        .url = url,
                        .bodyless = ml_str_is(ml_str_of(r->method), "HEAD"),
                        .connect_s = r->connect_s,
                        .idle_s = r->idle_s,
                        .total_s = r->total_s,
                        .max_body = r->max_body };
    j->event = ml_net_must(event_new(ml_loop_base(c->loop), -1, 0, on_job, j));
    write_request(j, r);
    if (c->jobs)
        c->jobs->prev = j;
    c->jobs = j;
    event_active(j->event, EV_TIMEOUT, 0);
    *out = j;
    return ML_OK;
}

void ml_http_cancel(ml_http_job *j) {
    if (j->peer)
        close_peer(j->peer);
    free_job(j);
}

/* --- the client ------------------------------------------------------------- */

ml_http_client *ml_http_client_new(ml_loop *l) {
    ml_http_client *c = ml_net_take(sizeof *c);

    c->loop = l;
    c->dns = ml_net_must(evdns_base_new(ml_loop_base(l), EVDNS_BASE_DISABLE_WHEN_INACTIVE));
    /* Without the file, numeric addresses still work, and names fail on lookup. */
    evdns_base_resolv_conf_parse(c->dns, DNS_OPTIONS_ALL, "/etc/resolv.conf");
    return c;
}

void ml_http_client_free(ml_http_client *c) {
    if (!c)
        return;
    for (ml_http_job *j = c->jobs, *next; j; j = next) {
        next = j->next;
        ml_http_cancel(j);
    }
    for (peer *p = c->idle, *next; p; p = next) {
        next = p->next;
        close_peer(p);
    }
    evdns_base_free(c->dns, 0);
    ml_tls_free(c->tls);
    free(c);
}
