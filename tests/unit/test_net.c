/* Loop, server, client and server-sent events, over real sockets of this machine. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/http_client.h"
#include "net/http_reader.h"
#include "net/http_server.h"
#include "net/sse.h"
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
    usleep(100000);
    ask(s, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
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

/* --- the client, on the loop of the server ---------------------------------- */

typedef struct fetch {
    ml_loop *loop;
    ml_http_job *job;
    int status, n_piece, n_done;
    bool failed, cancel_at_data, cancel_at_head;
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
    site site;
    ml_http_client *client;
    char base[64];
} pair;

static pair *open_pair(void) {
    pair *p = calloc(1, sizeof *p);
    ml_err err = { 0 };

    CHECK(ml_loop_new(&p->site.loop, &err) == ML_OK);
    CHECK(ml_http_server_open(&p->site.server, p->site.loop, "127.0.0.1", 0, usual, handle,
                              &p->site, &err) == ML_OK);
    p->site.port = ml_http_server_port(p->site.server);
    p->client = ml_http_client_new(p->site.loop);
    snprintf(p->base, sizeof p->base, "http://127.0.0.1:%d", p->site.port);
    return p;
}

static void close_pair(pair *p) {
    ml_http_client_free(p->client);
    ml_http_server_close(p->site.server);
    ml_loop_free(p->site.loop);
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
                          .idle_s = 0.3 };
    ml_err err = { 0 };

    f->loop = p->site.loop;
    ml_text_printf(&full, "%s%s", *url == '/' ? p->base : "", url);
    r.url = full.ptr;
    CHECK(ml_http_start(&f->job, p->client, &r, fns, &err) == ML_OK);
    ml_text_release(&full);
}

static void fetch_now(pair *p, fetch *f, const char *method, const char *url,
                      const char *body) {
    start(p, f, method, url, body);
    ml_loop_run(p->site.loop);
}

static void client_plain(void) {
    pair *p = open_pair();

    for (int i = 0; i < 5; i++) {
        fetch f = { 0 };
        fetch_now(p, &f, "POST", "/echo", "hello");
        CHECK(!f.failed && f.n_done == 1 && f.status == 200);
        CHECK_HAS(f.headers.ptr, "Content-Type: text/plain\n");
        CHECK(f.body.ptr && strcmp(f.body.ptr, "hello") == 0);
        release(&f);
    }
    CHECK(ml_http_server_connections(p->site.server) == 1); /* reused */
    for (int i = 0; i < 2; i++) {
        fetch f = { 0 };
        fetch_now(p, &f, i ? "HEAD" : "GET", "/x?y", "");
        CHECK(!f.failed && f.status == 200);
        if (i)
            CHECK(f.body.len == 0);
        else
            CHECK_HAS(f.body.ptr, "GET|/x|y|miles|3|");
        release(&f);
    }
    CHECK(ml_http_server_connections(p->site.server) == 1);
    close_pair(p);
}

static void client_streams(void) {
    pair *p = open_pair();
    fetch f = { 0 }, g = { 0 };

    fetch_now(p, &f, "GET", "/stream", "");
    CHECK(!f.failed);
    CHECK_HAS(f.body.ptr, "piece 0,piece 1,piece 2,piece 3,piece 4,");
    release(&f);
    fetch_now(p, &g, "GET", "/empty", "");
    CHECK(!g.failed && g.status == 204 && g.body.len == 0);
    CHECK(ml_http_server_connections(p->site.server) == 1);
    release(&g);
    close_pair(p);
}

static void client_errors(void) {
    pair *p = open_pair();
    static const char *const bad[] = { "ftp://h/",       "http://",         "http://:80/",
                                       "http://h:0/",    "http://h:70000/", "http://h:x/",
                                       "http://h/a b",   "nonsense",        "https://h/",
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
    fetch_now(p, &g, "GET", "/hold", "");
    CHECK(g.failed);
    CHECK_HAS(g.err.msg, "silent for 0.3 s");
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
    ml_loop_stop(((pair *)ud)->site.loop);
}

static void client_cancels(void) {
    pair *p = open_pair();
    fetch f = { 0 }, g = { .cancel_at_data = true }, h = { 0 },
          k = { .cancel_at_head = true };
    ml_timer *t;

    start(p, &f, "GET", "/hold", "");
    ml_http_cancel(f.job); /* before it began */
    start(p, &f, "GET", "/hold", "");
    t = ml_timer_start(p->site.loop, 0.05, false, stop_soon, p);
    ml_loop_run(p->site.loop);
    CHECK(p->site.held != NULL);
    ml_http_cancel(f.job);
    ml_timer_stop(t);
    t = ml_timer_start(p->site.loop, 0.05, false, stop_soon, p);
    ml_loop_run(p->site.loop);
    ml_timer_stop(t);
    CHECK(atomic_load(&p->site.n_gone) == 1 && f.n_done == 0);
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

static void *be_rude(void *ud) {
    rude *r = ud;

    for (int i = 0; i < r->n; i++) {
        char buf[1000];
        int fd = accept(r->fd, NULL, NULL);
        if (recv(fd, buf, sizeof buf, 0) > 0 && r->reply[i])
            say_text(fd, r->reply[i]);
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

static void client_against(const char *reply, const char *message, const char *body) {
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

static void client_against_rude_servers(void) {
    client_against("HTTP/1.1 200 OK\r\n\r\nuntil the end", NULL, "until the end");
    client_against("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
                   "\r\nok",
                   NULL, "ok");
    client_against("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", "in the middle",
                   "half");
    client_against("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
                   "in the middle", "hel");
    client_against("HTTP/1.1 200 OK\r\nContent-Le", "without a reply", NULL);
    client_against(NULL, "without a reply", NULL);
    client_against("SSH-2.0-OpenSSH_9.2p1\r\n\r\n", "not HTTP", NULL);
    client_against("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP", NULL);
}

/* A kept connection that its server has closed meanwhile does not fail the next job. */
static void client_begins_again(void) {
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

/* --- the loop --------------------------------------------------------------- */

typedef struct tally {
    ml_loop *loop;
    ml_timer *timer;
    int n, last[4];
    bool in_order;
} tally;

typedef struct ticket {
    tally *tally;
    int thread, number;
} ticket;

static void count_ticket(void *ud) {
    ticket *k = ud;
    tally *t = k->tally;

    t->in_order = t->in_order && t->last[k->thread] + 1 == k->number;
    t->last[k->thread] = k->number;
    free(k);
    if (++t->n == 4 * 1000)
        ml_loop_stop(t->loop);
}

static void *post_many(void *ud) {
    ticket *first = ud;

    for (int i = 1; i <= 1000; i++) {
        ticket *k = malloc(sizeof *k);
        *k = (ticket){ first->tally, first->thread, i };
        ml_loop_post(first->tally->loop, count_ticket, k);
    }
    return NULL;
}

static void posting(void) {
    tally t = { .in_order = true };
    ticket first[4];
    pthread_t thread[4];
    ml_err err = { 0 };

    CHECK(ml_loop_new(&t.loop, &err) == ML_OK);
    for (int i = 0; i < 4; i++) {
        first[i] = (ticket){ &t, i, 0 };
        pthread_create(&thread[i], NULL, post_many, &first[i]);
    }
    ml_loop_run(t.loop);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(t.n == 4000 && t.in_order);
    ml_loop_post(t.loop, stop_soon, NULL); /* dropped */
    ml_loop_free(t.loop);
}

static void tick(void *ud) {
    tally *t = ud;

    if (++t->n == 3) {
        ml_timer_stop(t->timer);
        t->timer = NULL;
        kill(getpid(), SIGTERM);
    }
}

static void signalled(void *ud) {
    ml_loop_stop(((tally *)ud)->loop);
}

static void timers_and_signals(void) {
    tally t = { 0 };
    ml_err err = { 0 };
    double start = ml_clock_s();

    CHECK(ml_loop_new(&t.loop, &err) == ML_OK);
    CHECK(ml_loop_on_signal(t.loop, SIGTERM, signalled, &t, &err) == ML_OK);
    t.timer = ml_timer_start(t.loop, 0.02, true, tick, &t);
    ml_loop_run(t.loop);
    CHECK(t.n == 3 && t.timer == NULL && ml_clock_s() - start >= 0.055);
    ml_timer_stop(NULL);
    ml_loop_free(t.loop);
}

/* --- server-sent events ----------------------------------------------------- */

static void collect(void *ud, ml_str data) {
    ml_text_printf(ud, "[%.*s]", (int)data.len, data.ptr);
}

static void events(void) {
    const char *source = "data: one\n\n: comment\ndata:two\ndata\ndata:  three\r\n\r\n"
                         "event: x\nid: 7\ndata: a\rdata: b\r\rdatum: no\n\n\ndata: end\n\n"
                         "data: unfinished";
    const char *want = "[one][two\n\n three][a\nb][end]";
    size_t n = strlen(source);

    for (size_t cut = 0; cut <= n; cut++) {
        ml_sse s = { 0 };
        ml_text got = { 0 };
        ml_sse_push(&s, (ml_str){ source, cut }, collect, &got);
        ml_sse_push(&s, (ml_str){ source + cut, n - cut }, collect, &got);
        CHECK(got.ptr && strcmp(got.ptr, want) == 0);
        ml_text_release(&got);
        ml_sse_release(&s);
    }
    for (int k = 0; k < 2; k++) {
        ml_sse s = { 0 };
        ml_text out = { 0 }, got = { 0 };
        ml_sse_write(&out, ml_str_of("a\nb\r\n\nc"));
        ml_sse_write(&out, ml_str_of("[DONE]"));
        CHECK(strcmp(out.ptr, "data: a\ndata: b\ndata: \ndata: c\n\ndata: [DONE]\n\n") ==
              0);
        for (size_t i = 0; i < out.len; i++)
            ml_sse_push(&s, (ml_str){ out.ptr + i, 1 }, collect, &got);
        CHECK(strcmp(got.ptr, "[a\nb\n\nc][[DONE]]") == 0);
        ml_text_release(&out);
        ml_text_release(&got);
        ml_sse_release(&s);
    }
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
    { "client_plain", client_plain },
    { "client_streams", client_streams },
    { "client_errors", client_errors },
    { "client_cancels", client_cancels },
    { "client_against_rude_servers", client_against_rude_servers },
    { "client_begins_again", client_begins_again },
    { "posting", posting },
    { "timers_and_signals", timers_and_signals },
    { "events", events },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
