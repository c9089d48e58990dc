/* The HTTP server, asked by clients of bare sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/http_server.h"
#include "tests/support/test.h"

/* --- a server on a thread of its own ---------------------------------------- */

typedef struct site {
    ml_loop *loop;
    ml_http_server *server;
    pthread_t thread;
    int port;
    atomic_int n_call, n_gone;
    ml_http_call *held; /* /hold, answered by /release */
} site;

static const ml_http_limits usual = { .max_header = 4096,
                                      .max_body = 100000,
                                      .max_connections = 50,
                                      .idle_s = 20,
                                      .max_unsent = 1 << 20 };

static void *run_loop(void *ud) {
    ml_loop_run(ud);
    return NULL;
}

static void gone(void *ud) {
    atomic_fetch_add(&((site *)ud)->n_gone, 1);
}

static void held_gone(void *ud) {
    site *s = ud;
    s->held = NULL;
    gone(s);
}

static void answer_later(void *ud) {
    ml_http_reply(ud, 200, "text/plain", ml_str_of("later"));
}

typedef struct later {
    site *site;
    ml_http_call *call;
} later;

static void *other_thread(void *ud) {
    later *l = ud;
    usleep(2000);
    ml_loop_post(l->site->loop, answer_later, l->call);
    free(l);
    return NULL;
}

static void start_later(site *s, ml_http_call *c) {
    later *l = malloc(sizeof *l);
    pthread_t t;
    *l = (later){ s, c };
    pthread_create(&t, NULL, other_thread, l);
    pthread_detach(t);
}

static void stream(ml_http_call *c) {
    ml_http_add_header(c, "X-Break", "a\r\nX-Evil: b");
    ml_http_begin(c, 200, "text/event-stream");
    for (int i = 0; i < 5; i++) {
        char piece[32];
        snprintf(piece, sizeof piece, "piece %d,", i);
        ml_http_write(c, ml_str_of(piece));
    }
    ml_http_end(c);
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

static void flood(site *s, ml_http_call *c) {
    static char lots[1 << 16];
    ml_http_on_gone(c, gone, s);
    ml_http_begin(c, 200, "text/plain");
    /* More than the kernel's buffers and max_unsent together. */
    for (int i = 0; i < 400; i++)
        ml_http_write(c, (ml_str){ lots, sizeof lots });
}

static void hold(site *s, ml_http_call *c, bool begin) {
    s->held = c;
    ml_http_on_gone(c, held_gone, s);
    if (begin) {
        ml_http_begin(c, 200, "text/plain");
        ml_http_write(c, ml_str_of("first"));
    }
}

static void handle(void *ud, ml_http_call *c) {
    site *s = ud;
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

static site *open_site(ml_http_limits limits) {
    site *s = calloc(1, sizeof *s);
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

static void close_site(site *s) {
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    ml_http_server_close(s->server);
    ml_loop_free(s->loop);
    free(s);
}

/* --- a client of bare sockets ----------------------------------------------- */

static int dial(int port) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct timeval tv = { .tv_sec = 10 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static void say(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* refused in the middle: the reply tells */
        bytes += k;
        n -= (size_t)k;
    }
}

static void say_text(int fd, const char *text) {
    say(fd, text, strlen(text));
}

/* Everything until the server closes; the error that ended it, 0 for an orderly end. */
static int hear(int fd, ml_text *out) {
    char buf[4096];
    ssize_t n;

    out->len = 0;
    ml_text_add(out, "", 0);
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        ml_text_add(out, buf, (size_t)n);
    return n == 0 ? 0 : errno;
}

/* Until `needle` has come. */
static void hear_until(int fd, ml_text *out, const char *needle) {
    char ch;

    out->len = 0;
    ml_text_add(out, "", 0);
    while (!strstr(out->ptr, needle) && recv(fd, &ch, 1, 0) == 1)
        ml_text_add(out, &ch, 1);
}

static void ask(const site *s, const char *request, ml_text *out) {
    int fd = dial(s->port);

    say_text(fd, request);
    CHECK(hear(fd, out) == 0);
    close(fd);
}

static int occurrences(const char *hay, const char *needle) {
    int n = 0;

    for (const char *p = strstr(hay, needle); p; p = strstr(p + 1, needle))
        n++;
    return n;
}

/* Waits until a counter of the server's thread has this value. */
static bool becomes(atomic_int *x, int value) {
    for (int i = 0; i < 5000 && atomic_load(x) != value; i++)
        usleep(1000);
    return atomic_load(x) == value;
}

/* --- the server ------------------------------------------------------------- */

static void plain(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };

    ask(s,
        "GET /a%20b/c?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nUser-Agent: me\r\n"
        "Connection: close\r\n\r\n",
        &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 200 OK\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\nGET|/a b/c|x=1&y=%20|me|3|127.0.0.1");
    ask(s,
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
        "hello",
        &t);
    CHECK_HAS(t.ptr, "Content-Length: 5\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\nhello");
    ask(s, "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "Content-Length: ");
    CHECK(t.len > 4 && strcmp(t.ptr + t.len - 4, "\r\n\r\n") == 0);
    ask(s, "OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "OPTIONS|*||none");
    ask(s, "GET http://h/abs?q HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "GET|/abs|q|");
    ask(s, "GET /empty HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 204 No Content\r\n");
    CHECK(!strstr(t.ptr, "Content-Length") && !strstr(t.ptr, "Transfer-Encoding"));
    ml_text_release(&t);
    close_site(s);
}

static void http_1_0(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };

    ask(s, "GET /stream HTTP/1.0\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "\r\n\r\npiece 0,piece 1,piece 2,piece 3,piece 4,");
    CHECK(!strstr(t.ptr, "chunked"));
    ml_text_release(&t);
    close_site(s);
}

static void keep_alive_and_pipelining(void) {
    site *s = open_site(usual);
    ml_text t = { 0 }, many = { 0 };
    const char *first, *second;
    int fd = dial(s->port);

    say_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none");
    hear_until(fd, &t, "one");
    CHECK_HAS(t.ptr, "one");
    say_text(fd, "\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ntwo");
    hear_until(fd, &t, "two");
    CHECK_HAS(t.ptr, "two");
    /* The first of these is answered later; the second must wait for it. */
    say_text(fd, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n"
                 "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                 "Content-Length: 5\r\n\r\nthree");
    CHECK(hear(fd, &t) == 0);
    first = strstr(t.ptr, "later");
    second = strstr(t.ptr, "three");
    CHECK(first && second && first < second);
    close(fd);

    fd = dial(s->port);
    for (int i = 0; i < 3000; i++)
        ml_text_printf(&many, "GET /n%d HTTP/1.1\r\nHost: h\r\n%s\r\n", i,
                       i == 2999 ? "Connection: close\r\n" : "");
    say(fd, many.ptr, many.len);
    CHECK(hear(fd, &t) == 0);
    CHECK(occurrences(t.ptr, "HTTP/1.1 200 OK") == 3000);
    CHECK(strstr(t.ptr, "|/n7|") < strstr(t.ptr, "|/n2998|"));
    close(fd);
    ml_text_release(&t);
    ml_text_release(&many);
    close_site(s);
}

static void streams(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };

    ask(s, "GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "Transfer-Encoding: chunked\r\n");
    CHECK_HAS(t.ptr, "X-Break: a  X-Evil: b\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\n8\r\npiece 0,\r\n8\r\npiece 1,\r\n");
    CHECK_HAS(t.ptr, "piece 4,\r\n0\r\n\r\n");
    ask(s, "GET /counted HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "Content-Length: 10\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\n1234567890");
    CHECK(!strstr(t.ptr, "chunked"));
    ml_text_release(&t);
    close_site(s);
}

/* A reply that is not whole never looks like one that is. */
static void cut_replies(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    static const char *const paths[] = { "/abort", "/short" };

    for (int i = 0; i < 2; i++) {
        char request[100];
        int fd = dial(s->port);
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", paths[i]);
        say_text(fd, request);
        hear(fd, &t);
        CHECK(!strstr(t.ptr, "0\r\n\r\n") || i == 1);
        CHECK(!strstr(t.ptr, "1234567890"));
        close(fd);
    }
    ml_text_release(&t);
    close_site(s);
}

static void chunked_requests(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    const char *request = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
                          "Connection: close\r\n\r\n5\r\nhello\r\n7;x=y\r\n, "
                          "world\r\n0\r\nTrailer: z\r\n\r\n";
    int fd;

    ask(s, request, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nhello, world");
    fd = dial(s->port); /* byte by byte */
    for (const char *p = request; *p; p++)
        say(fd, p, 1);
    CHECK(hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "\r\n\r\nhello, world");
    close(fd);
    fd = dial(s->port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
                 "Expect: 100-continue\r\nConnection: close\r\n\r\n");
    hear_until(fd, &t, "\r\n\r\n");
    CHECK_HAS(t.ptr, "HTTP/1.1 100 Continue\r\n\r\n");
    say_text(fd, "ok");
    hear(fd, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nok");
    close(fd);
    ml_text_release(&t);
    close_site(s);
}

static void malformed(void) {
    static const struct {
        const char *request, *status;
    } bad[] = {
        { "GET / HTTP/1.1\r\n\r\n", "400" }, /* no Host */
        { "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400" },
        { "GET /\r\nHost: h\r\n\r\n", "400" },
        { "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "GET / HTTP/1.1\nHost: h\n\n", "400" },
        { "GET / HTTP/2.0\r\nHost: h\r\n\r\n", "505" },
        { "GET nowhere HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "BREW / HTTP/1.1\r\nHost: h\r\n\r\n", "501" },
        { "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", "501" },
        { "GE\001T / HTTP/1.1\r\nHost: h\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\nHost : h\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\nHost: h\r\nnocolon\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\nHost: h\r\nX: a\001b\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\nx", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1 1\r\n\r\nx", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
          "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501" },
        { "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
          "ffffffffffffffff\r\n",
          "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
          "fffffffffffffff\r\n",
          "413" },
        { "\x16\x03\x01\x02\r\n\r\n", "400" }, /* TLS at the wrong door */
    };
    site *s = open_site(usual);
    ml_text t = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char want[32];
        snprintf(want, sizeof want, "HTTP/1.1 %s ", bad[i].status);
        ask(s, bad[i].request, &t);
        if (strncmp(t.ptr, want, strlen(want)) != 0 ||
            occurrences(t.ptr, "Content-Length:") != 1)
            ml_test_fail(__FILE__, __LINE__, "case %zu: wanted %s, got %s", i,
                         bad[i].status, t.ptr);
        CHECK_HAS(t.ptr, "Connection: close\r\n");
    }
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    close_site(s);
}

static void limits_on_size(void) {
    site *s = open_site(usual);
    ml_text t = { 0 }, big = { 0 };
    int fd;

    for (int i = 0; i < 50; i++)
        ml_text_printf(&big, "%0100d", 0);
    fd = dial(s->port);
    say_text(fd, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
    say(fd, big.ptr, big.len);
    CHECK(hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 431 ");
    close(fd);
    ask(s, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 413 ");

    /* The whole of a body that is too large is sent, and the refusal still arrives. */
    fd = dial(s->port);
    say_text(fd, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 200; i++) {
        say_text(fd, "1388\r\n");
        say(fd, big.ptr, big.len);
        say_text(fd, "\r\n");
    }
    CHECK(hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 413 ");
    close(fd);

    big.len = 0;
    for (int i = 0; i < 200; i++)
        ml_text_printf(&big, "X%d: y\r\n", i);
    fd = dial(s->port);
    say_text(fd, "GET / HTTP/1.1\r\nHost: h\r\n");
    say(fd, big.ptr, big.len);
    say_text(fd, "\r\n");
    CHECK(hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 431 ");
    close(fd);
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    ml_text_release(&big);
    close_site(s);
}

static void limit_on_connections(void) {
    ml_http_limits few = usual;
    ml_text t = { 0 };
    int fd[3];
    site *s;

    few.max_connections = 2;
    s = open_site(few);
    for (int i = 0; i < 2; i++) {
        fd[i] = dial(s->port);
        say_text(fd[i], "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        hear_until(fd[i], &t, "ok");
    }
    fd[2] = dial(s->port);
    say_text(fd[2], "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(hear(fd[2], &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 503 ");
    close(fd[2]);
    close(fd[0]);
    for (int i = 0; i < 500; i++) { /* the server has to see that one has gone */
        ask(s, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
        if (!strstr(t.ptr, "HTTP/1.1 503 "))
            break;
        usleep(10000);
    }
    CHECK_HAS(t.ptr, "HTTP/1.1 200 ");
    close(fd[1]);
    ml_text_release(&t);
    close_site(s);
}

static void idle_connections_end(void) {
    ml_http_limits brisk = usual;
    ml_text t = { 0 };
    double start;
    site *s;
    int fd;

    brisk.idle_s = 0.2;
    s = open_site(brisk);
    start = ml_clock_s();
    ask(s, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nha", &t);
    CHECK(t.len == 0 && ml_clock_s() - start < 5);
    CHECK(atomic_load(&s->n_call) == 0);
    /* While its answer is made, a client may be silent. */
    fd = dial(s->port);
    say_text(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 1));
    usleep(500000);
    CHECK(atomic_load(&s->n_gone) == 0);
    close(fd);
    CHECK(becomes(&s->n_gone, 1));
    ml_text_release(&t);
    close_site(s);
}

static void vanishing_clients(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    int fd = dial(s->port);

    say_text(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 1));
    close(fd);
    CHECK(becomes(&s->n_gone, 1));

    fd = dial(s->port);
    say_text(fd, "GET /hold-begun HTTP/1.1\r\nHost: h\r\n\r\n");
    hear_until(fd, &t, "first");
    close(fd);
    CHECK(becomes(&s->n_gone, 2));

    /* In the middle of a request: nobody is told, nothing stays. */
    fd = dial(s->port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\nabc");
    close(fd);
    /* One that only stops sending still gets an answer that is ready. */
    fd = dial(s->port);
    say_text(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
    shutdown(fd, SHUT_WR);
    hear(fd, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nok");
    close(fd);
    CHECK(atomic_load(&s->n_gone) == 2);
    ml_text_release(&t);
    close_site(s);
}

static void slow_readers(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    int fd = dial(s->port);

    say_text(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_gone, 1));
    hear(fd, &t);
    CHECK(t.len < (size_t)400 << 16);
    close(fd);
    ml_text_release(&t);
    close_site(s);
}

static void closing_with_calls_pending(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    int fd = dial(s->port), other = dial(s->port);
    atomic_int *n_gone = &s->n_gone;

    say_text(fd, "GET /hold-begun HTTP/1.1\r\nHost: h\r\n\r\n");
    hear_until(fd, &t, "first");
    say_text(other, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    CHECK(ml_http_server_connections(s->server) == 2);
    ml_http_server_close(s->server);
    CHECK(atomic_load(n_gone) == 1);
    hear(fd, &t);
    CHECK(strcmp(t.ptr, "\r\n") == 0); /* no last chunk */
    close(fd);
    close(other);
    ml_loop_free(s->loop);
    free(s);
    ml_text_release(&t);
}

static void stop_accepting(void *ud) {
    site *s = ud;
    ml_http_server_stop_accepting(s->server);
    if (s->held)
        ml_http_reply(s->held, 200, "text/plain", ml_str_of("done"));
}

static void draining(void) {
    site *s = open_site(usual);
    ml_text t = { 0 };
    int busy = dial(s->port), idle = dial(s->port), late;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port) };

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    say_text(idle, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
    hear_until(idle, &t, "ok");
    say_text(busy, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 2));
    ml_loop_post(s->loop, stop_accepting, s);
    CHECK(hear(busy, &t) == 0);
    CHECK_HAS(t.ptr, "Connection: close\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\ndone");
    CHECK(hear(idle, &t) == 0 && t.len == 0);
    late = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(late, (struct sockaddr *)&a, sizeof a) != 0);
    close(late);
    close(busy);
    close(idle);
    ml_text_release(&t);
    close_site(s);
}

static void taken_port(void) {
    site *s = open_site(usual);
    ml_http_server *other;
    ml_loop *l;
    ml_err err = { 0 };
    char port[16];

    CHECK(ml_loop_new(&l, &err) == ML_OK);
    CHECK(ml_http_server_open(&other, l, "127.0.0.1", s->port, usual, handle, s, &err) ==
          ML_EIO);
    snprintf(port, sizeof port, "port %d", s->port);
    CHECK_HAS(err.msg, port);
    CHECK_HAS(err.msg, "in use");
    CHECK(ml_http_server_open(&other, l, "no such host", 0, usual, handle, s, &err) ==
          ML_EIO);
    CHECK_HAS(err.msg, "no such host");
    ml_loop_free(l);
    close_site(s);
}

static void a_thousand_connections(void) {
    enum { N = 1000 };
    ml_http_limits wide = usual;
    ml_text t = { 0 };
    static int fd[N];
    site *s;

    wide.max_connections = N;
    s = open_site(wide); /* which raises this process' limit on descriptors */
    for (int i = 0; i < N; i++)
        fd[i] = dial(s->port);
    for (int i = 0; i < N; i++)
        say_text(fd[i], "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
    for (int i = 0; i < N; i++) {
        hear_until(fd[i], &t, "later");
        CHECK_HAS(t.ptr, "later");
        close(fd[i]);
    }
    ml_text_release(&t);
    close_site(s);
}

static const ml_test tests[] = {
    { "plain", plain },
    { "http_1_0", http_1_0 },
    { "keep_alive_and_pipelining", keep_alive_and_pipelining },
    { "streams", streams },
    { "cut_replies", cut_replies },
    { "chunked_requests", chunked_requests },
    { "malformed", malformed },
    { "limits_on_size", limits_on_size },
    { "limit_on_connections", limit_on_connections },
    { "idle_connections_end", idle_connections_end },
    { "vanishing_clients", vanishing_clients },
    { "slow_readers", slow_readers },
    { "closing_with_calls_pending", closing_with_calls_pending },
    { "draining", draining },
    { "taken_port", taken_port },
    { "a_thousand_connections", a_thousand_connections },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
