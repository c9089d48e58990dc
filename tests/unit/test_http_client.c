/* The HTTP client, against our server and against rude ones. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http_client.h"
#include "net/http_server.h"
#include "tests/support/http_fixture.h"
#include "tests/support/test.h"

typedef struct fetch {
    ml_loop *loop;
    ml_http_job *job;
    int status, n_piece, n_done;
    bool failed, cancel_at_data, cancel_at_head;
    double idle_s, total_s; /* 0: 20 s of silence, no limit */
    size_t max_body;        /* too */
    ml_text headers, body;
    ml_err err;
} fetch;

static void got_head(void *ud, int status, ml_str headers) {
    fetch *f = ud;
    f->status = status;
    ml_text_add(&f->headers, headers.ptr, headers.len);
    if (f->cancel_at_head) {
        ml_http_cancel(f->job);
        ml_loop_stop(f->loop);
    }
}

static void got_data(void *ud, ml_str piece) {
    fetch *f = ud;
    f->n_piece++;
    ml_text_add(&f->body, piece.ptr, piece.len);
    if (f->cancel_at_data) {
        ml_http_cancel(f->job);
        ml_loop_stop(f->loop);
    }
}

static void got_done(void *ud, const ml_err *err) {
    fetch *f = ud;
    f->n_done++;
    f->failed = err != NULL;
    if (err)
        f->err = *err;
    ml_loop_stop(f->loop);
}

static void release(fetch *f) {
    ml_text_release(&f->headers);
    ml_text_release(&f->body);
}

/* Loop, server and client of one thread. */
typedef struct pair {
    ml_loop *loop;
    ml_http_server *server;
    ml_http_client *client;
    ml_http_call *held; /* that is never answered */
    int n_held, n_gone;
    char base[64];
} pair;

static void held_gone(void *ud) {
    pair *p = ud;
    p->held = NULL;
    p->n_gone++;
}

static void describe(ml_http_call *c) {
    ml_text t = { 0 };
    ml_str m = ml_http_method(c), target = ml_http_target(c);
    ml_str agent = ml_http_header(c, "user-agent"), name, value;
    int n = 0;

    while (ml_http_header_at(c, n, &name, &value))
        n++;
    ml_text_printf(&t, "%.*s|%.*s|%.*s|%d", (int)m.len, m.ptr, (int)target.len, target.ptr,
                   (int)agent.len, agent.ptr, n);
    ml_http_reply(c, 200, "text/plain", (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

static void handle(void *ud, ml_http_call *c) {
    pair *p = ud;
    ml_str path = ml_http_path(c);

    if (ml_str_is(path, "/echo"))
        ml_http_reply(c, 200, "text/plain", ml_http_body(c));
    else if (ml_str_is(path, "/stream"))
        ml_http_answer_pieces(c);
    else if (ml_str_is(path, "/empty"))
        ml_http_reply(c, 204, NULL, ml_str_of(""));
    else if (ml_str_is(path, "/hold") || ml_str_is(path, "/drip")) {
        p->held = c;
        p->n_held++;
        if (ml_str_is(path, "/drip"))
            ml_http_begin(c, 200, NULL);
        ml_http_on_gone(c, held_gone, p);
    } else if (ml_str_is(path, "/abort")) {
        ml_http_begin(c, 200, NULL);
        ml_http_write(c, ml_str_of("half"));
        ml_http_abort(c);
    } else
        describe(c);
}

static pair *open_pair(void) {
    static const ml_http_limits limits = { .max_header = 4096,
                                           .max_body = 100000,
                                           .max_connections = 50,
                                           .idle_s = 20,
                                           .max_unsent = 1 << 20 };
    pair *p = calloc(1, sizeof *p);
    ml_err err = { 0 };

    CHECK(ml_loop_new(&p->loop, &err) == ML_OK);
    CHECK(ml_http_server_open(&p->server, p->loop, "127.0.0.1", 0, limits, handle, p,
                              &err) == ML_OK);
    p->client = ml_http_client_new(p->loop);
    snprintf(p->base, sizeof p->base, "http://127.0.0.1:%d",
             ml_http_server_port(p->server));
    return p;
}

static void close_pair(pair *p) {
    ml_http_client_free(p->client);
    ml_http_server_close(p->server);
    ml_loop_free(p->loop);
    free(p);
}

static void start(pair *p, fetch *f, const char *method, const char *url,
                  const char *body) {
    ml_text full = { 0 };
    ml_http_fns fns = { got_head, got_data, got_done, f };
    ml_http_request r = { .method = method,
                          .headers = "User-Agent: miles\nX-Other: 1\n",
                          .body = ml_str_of(body),
                          .connect_s = 2,
                          .idle_s = f->total_s > 0  ? 0
                                    : f->idle_s > 0 ? f->idle_s
                                                    : 20,
                          .total_s = f->total_s,
                          .max_body = f->max_body };
    ml_err err = { 0 };

    f->loop = p->loop;
    ml_text_printf(&full, "%s%s", *url == '/' ? p->base : "", url);
    r.url = full.ptr;
    CHECK(ml_http_start(&f->job, p->client, &r, fns, &err) == ML_OK);
    ml_text_release(&full);
}

static void fetch_now(pair *p, fetch *f, const char *method, const char *url,
                      const char *body) {
    start(p, f, method, url, body);
    ml_loop_run(p->loop);
}

static void plain(void) {
    pair *p = open_pair();

    for (int i = 0; i < 5; i++) {
        fetch f = { 0 };
        fetch_now(p, &f, "POST", "/echo", "hello");
        CHECK(!f.failed && f.n_done == 1 && f.status == 200);
        CHECK_HAS(f.headers.ptr, "Content-Type: text/plain\n");
        CHECK(f.body.ptr && strcmp(f.body.ptr, "hello") == 0);
        release(&f);
    }
    CHECK(ml_http_server_connections(p->server) == 1); /* reused */
    for (int i = 0; i < 2; i++) {
        fetch f = { 0 };
        fetch_now(p, &f, i ? "HEAD" : "GET", "/x?y", "");
        CHECK(!f.failed && f.status == 200);
        if (i)
            CHECK(f.body.len == 0);
        else
            CHECK_HAS(f.body.ptr, "GET|/x?y|miles|3");
        release(&f);
    }
    CHECK(ml_http_server_connections(p->server) == 1);
    close_pair(p);
}

static void streams(void) {
    pair *p = open_pair();
    fetch f = { 0 }, g = { 0 };

    fetch_now(p, &f, "GET", "/stream", "");
    CHECK(!f.failed);
    CHECK_HAS(f.body.ptr, "piece 0,piece 1,piece 2,piece 3,piece 4,");
    release(&f);
    fetch_now(p, &g, "GET", "/empty", "");
    CHECK(!g.failed && g.status == 204 && g.body.len == 0);
    CHECK(ml_http_server_connections(p->server) == 1);
    release(&g);
    close_pair(p);
}

static void errors(void) {
    pair *p = open_pair();
    static const char *const bad[] = { "ftp://h/",       "http://",         "http://:80/",
                                       "http://h:0/",    "http://h:70000/", "http://h:x/",
                                       "http://h/a b",   "nonsense",        "ftp://hos/",
                                       "http://u@h:80/", "http://[::1/" };
    ml_http_fns fns = { got_head, got_data, got_done, NULL };
    fetch f = { 0 }, g = { 0 }, h = { 0 }, k = { 0 };
    char closed[64];
    int unused = 0;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_http_request r = { .method = "GET", .url = bad[i] };
        ml_http_job *j;
        ml_err err = { 0 };
        CHECK(ml_http_start(&j, p->client, &r, fns, &err) != ML_OK);
        CHECK_HAS(err.msg, bad[i]);
    }
    /* A port that nobody listens at: bound, but not listening. */
    {
        struct sockaddr_in a = { .sin_family = AF_INET };
        socklen_t n = sizeof a;
        unused = socket(AF_INET, SOCK_STREAM, 0);
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        CHECK(bind(unused, (struct sockaddr *)&a, sizeof a) == 0);
        CHECK(getsockname(unused, (struct sockaddr *)&a, &n) == 0);
        snprintf(closed, sizeof closed, "http://127.0.0.1:%d/x", ntohs(a.sin_port));
    }
    fetch_now(p, &f, "GET", closed, "");
    CHECK(f.failed && f.n_done == 1);
    CHECK_HAS(f.err.msg, closed);
    CHECK_HAS(f.err.msg, "refused");
    g.idle_s = 0.3;
    fetch_now(p, &g, "GET", "/hold", "");
    CHECK(g.failed);
    CHECK_HAS(g.err.msg, "sent nothing for 0.3 s");
    fetch_now(p, &h, "GET", "/abort", "");
    CHECK(h.failed && h.n_done == 1);
    fetch_now(p, &k, "GET", "http://no-such-host.invalid:1/", "");
    CHECK(k.failed);
    CHECK_HAS(k.err.msg, "cannot connect");
    close(unused);
    release(&f);
    release(&g);
    release(&h);
    release(&k);
    close_pair(p);
}

static void stop_soon(void *ud) {
    ml_loop_stop(((pair *)ud)->loop);
}

/* Runs the loop until *counter is n, for some seconds at most. */
static bool becomes(pair *p, const int *counter, int n) {
    for (int i = 0; i < 2000 && *counter != n; i++) {
        ml_timer *t = ml_timer_start(p->loop, 0.01, false, stop_soon, p);
        ml_loop_run(p->loop);
        ml_timer_stop(t);
    }
    return *counter == n;
}

static void cancels(void) {
    pair *p = open_pair();
    fetch f = { 0 }, g = { .cancel_at_data = true }, h = { 0 },
          k = { .cancel_at_head = true };

    start(p, &f, "GET", "/hold", "");
    ml_http_cancel(f.job); /* before it began */
    start(p, &f, "GET", "/hold", "");
    CHECK(becomes(p, &p->n_held, 1));
    ml_http_cancel(f.job);
    CHECK(becomes(p, &p->n_gone, 1) && f.n_done == 0);
    fetch_now(p, &g, "GET", "/stream", "");
    CHECK(g.n_piece == 1 && g.n_done == 0);
    fetch_now(p, &k, "GET", "/stream", "");
    CHECK(k.status == 200 && k.n_piece == 0 && k.n_done == 0);
    start(p, &h, "GET", "/hold", ""); /* ends with the client */
    release(&f);
    release(&g);
    release(&k);
    close_pair(p);
    CHECK(h.n_done == 0);
}

/* Answers each connection with a fixed text, then closes it; twice, then stops. */
typedef struct rude {
    int fd, port, n;
    const char *reply[2];
} rude;

/* Reads up to the empty line: a close with unread bytes would reset the connection, and the
 * reply could be lost. */
static bool read_request(int fd) {
    char buf[1000];
    size_t n = 0;
    ssize_t k = 1;

    while (k > 0 && n < sizeof buf - 1 && !(n && strstr(buf, "\r\n\r\n"))) {
        k = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        n += k > 0 ? (size_t)k : 0;
        buf[n] = 0;
    }
    return n > 0;
}

static void *be_rude(void *ud) {
    rude *r = ud;

    for (int i = 0; i < r->n; i++) {
        int fd = accept(r->fd, NULL, NULL);
        if (read_request(fd) && r->reply[i])
            CHECK(send(fd, r->reply[i], strlen(r->reply[i]), MSG_NOSIGNAL) > 0);
        close(fd);
    }
    return NULL;
}

static void listen_rudely(rude *r, pthread_t *t) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;

    r->fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(r->fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(r->fd, 5) == 0);
    CHECK(getsockname(r->fd, (struct sockaddr *)&a, &n) == 0);
    r->port = ntohs(a.sin_port);
    pthread_create(t, NULL, be_rude, r);
}

static void against(const char *reply, const char *message, const char *body) {
    pair *p = open_pair();
    rude r = { .n = 1, .reply = { reply } };
    fetch f = { 0 };
    pthread_t t;
    char url[64];

    listen_rudely(&r, &t);
    snprintf(url, sizeof url, "http://localhost:%d/x", r.port);
    fetch_now(p, &f, "GET", url, "");
    pthread_join(t, NULL);
    CHECK(f.n_done == 1 && f.failed == (message != NULL));
    if (message)
        CHECK_HAS(f.err.msg, message);
    if (body)
        CHECK(f.body.ptr && strcmp(f.body.ptr, body) == 0);
    close(r.fd);
    release(&f);
    close_pair(p);
}

static void against_rude_servers(void) {
    against("HTTP/1.1 200 OK\r\n\r\nuntil the end", NULL, "until the end");
    against("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
            "\r\nok",
            NULL, "ok");
    against("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", "in the middle", "half");
    against("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "in the middle", "hel");
    against("HTTP/1.1 200 OK\r\nContent-Le", "without a reply", NULL);
    against(NULL, "without a reply", NULL);
    against("SSH-2.0-OpenSSH_9.2p1\r\n\r\n", "not HTTP", NULL);
    against("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP", NULL);
}

/* A kept connection that its server has closed meanwhile does not fail the next job. */
static void begins_again(void) {
    pair *p = open_pair();
    const char *keep = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    rude r = { .n = 2, .reply = { keep, keep } };
    pthread_t t;
    char url[64];

    listen_rudely(&r, &t);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/x", r.port);
    for (int i = 0; i < 2; i++) {
        fetch f = { 0 };
        fetch_now(p, &f, "GET", url, "");
        CHECK(!f.failed && f.n_done == 1);
        release(&f);
        usleep(50000);
    }
    pthread_join(t, NULL);
    close(r.fd);
    close_pair(p);
}

/* A reply has a limit however its end is marked: by a length, by chunks, by the connection's
 * end. */
static void replies_have_a_limit(void) {
    static const char to_eof[] = "HTTP/1.1 200 OK\r\n\r\n0123456789";
    pair *p = open_pair();
    fetch fits = { .max_body = 5 }, fixed = { .max_body = 4 }, chunked = { .max_body = 20 },
          eof = { .max_body = 9 };
    rude r = { .n = 1, .reply = { to_eof } };
    pthread_t t;
    char url[64];

    fetch_now(p, &fits, "POST", "/echo", "hello");
    CHECK(!fits.failed && fits.body.len == 5);
    fetch_now(p, &fixed, "POST", "/echo", "hello");
    CHECK(fixed.failed && fixed.body.len == 0);
    CHECK_HAS(fixed.err.msg, "/echo: the reply exceeds the limit of 4 bytes");
    fetch_now(p, &chunked, "GET", "/stream", "");
    CHECK(chunked.failed && chunked.body.len <= 20);
    CHECK_HAS(chunked.err.msg, "the reply exceeds the limit of 20 bytes");
    listen_rudely(&r, &t);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/x", r.port);
    fetch_now(p, &eof, "GET", url, "");
    pthread_join(t, NULL);
    close(r.fd);
    CHECK(eof.failed && eof.body.len <= 9);
    CHECK_HAS(eof.err.msg, "the reply exceeds the limit of 9 bytes");
    release(&fits);
    release(&fixed);
    release(&chunked);
    release(&eof);
    close_pair(p);
}

static void drip(void *ud) {
    pair *p = ud;
    if (p->held)
        ml_http_write(p->held, ml_str_of("."));
}

/* A server that sends a byte now and then is never silent, and yet its time is limited. */
static void replies_have_a_deadline(void) {
    pair *p = open_pair();
    fetch f = { .total_s = 0.3 };
    ml_timer *t;

    start(p, &f, "GET", "/drip", "");
    t = ml_timer_start(p->loop, 0.02, true, drip, p);
    ml_loop_run(p->loop);
    ml_timer_stop(t);
    CHECK(f.failed && f.n_done == 1 && f.n_piece > 0);
    CHECK_HAS(f.err.msg, "/drip: the reply was not complete within 0.3 s");
    release(&f);
    close_pair(p);
}

/* How many sockets of this process the kernel gives up when nobody acknowledges. */
static int count_watched(void) {
    int n = 0;

    for (int fd = 3; fd < 256; fd++) {
        int alive = 0, ms = 0;
        socklen_t size = sizeof alive;
        if (getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &size) == 0 && alive &&
            getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &size) == 0 && ms > 0)
            n++;
    }
    return n;
}

static void dead_machines_are_noticed(void) {
    pair *p = open_pair();
    fetch f = { 0 };
    int before = count_watched();

    fetch_now(p, &f, "POST", "/echo", "hello");
    CHECK(!f.failed && count_watched() == before + 1);
    release(&f);
    close_pair(p);
}

static const ml_test tests[] = {
    { "the client gets replies over one kept connection", plain },
    { "the client gets streamed pieces as they arrive", streams },
    { "bad URLs and refused connections are errors", errors },
    { "a job can be cancelled at any point", cancels },
    { "the client reads or refuses malformed replies", against_rude_servers },
    { "a kept connection that the server closed is reopened", begins_again },
    { "a reply over its limit of bytes is refused", replies_have_a_limit },
    { "a reply that drips is cut at its deadline", replies_have_a_deadline },
    { "connections have TCP keep-alive", dead_machines_are_noticed },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
