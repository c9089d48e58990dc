/* The HTTP server: requests and replies, as a client of bare sockets sees them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/http_fixture.h"
#include "tests/support/sock.h"
#include "tests/support/test.h"

static int occurrences(const char *hay, const char *needle) {
    int n = 0;

    for (const char *p = strstr(hay, needle); p; p = strstr(p + 1, needle))
        n++;
    return n;
}

static void plain(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    ml_sock_ask(s->port,
                "GET /a%20b/c?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nUser-Agent: me\r\n"
                "Connection: close\r\n\r\n",
                &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 200 OK\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\nGET|/a b/c|x=1&y=%20|me|3|127.0.0.1");
    ml_sock_ask(
        s->port,
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
        "hello",
        &t);
    CHECK_HAS(t.ptr, "Content-Length: 5\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\nhello");
    ml_sock_ask(s->port, "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "Content-Length: ");
    CHECK(t.len > 4 && strcmp(t.ptr + t.len - 4, "\r\n\r\n") == 0);
    ml_sock_ask(s->port, "OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "OPTIONS|*||none");
    ml_sock_ask(s->port,
                "GET http://h/abs?q HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "GET|/abs|q|");
    ml_sock_ask(s->port, "GET /empty HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 204 No Content\r\n");
    CHECK(!strstr(t.ptr, "Content-Length") && !strstr(t.ptr, "Transfer-Encoding"));
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void http_1_0(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    ml_sock_ask(s->port, "GET /stream HTTP/1.0\r\n\r\n", &t);
    CHECK_HAS(t.ptr, "\r\n\r\npiece 0,piece 1,piece 2,piece 3,piece 4,");
    CHECK(!strstr(t.ptr, "chunked"));
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void keep_alive_and_pipelining(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 }, many = { 0 };
    const char *first, *second;
    int fd = ml_sock_dial(s->port);

    ml_sock_say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none");
    ml_sock_hear_until(fd, &t, "one");
    CHECK_HAS(t.ptr, "one");
    ml_sock_say(fd, "\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ntwo");
    ml_sock_hear_until(fd, &t, "two");
    CHECK_HAS(t.ptr, "two");
    /* The first of these is answered later; the second must wait for it. */
    ml_sock_say(fd, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n"
                    "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                    "Content-Length: 5\r\n\r\nthree");
    CHECK(ml_sock_hear(fd, &t) == 0);
    first = strstr(t.ptr, "later");
    second = strstr(t.ptr, "three");
    CHECK(first && second && first < second);
    close(fd);

    fd = ml_sock_dial(s->port);
    for (int i = 0; i < 3000; i++)
        ml_text_printf(&many, "GET /n%d HTTP/1.1\r\nHost: h\r\n%s\r\n", i,
                       i == 2999 ? "Connection: close\r\n" : "");
    ml_sock_send(fd, many.ptr, many.len);
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK(occurrences(t.ptr, "HTTP/1.1 200 OK") == 3000);
    CHECK(strstr(t.ptr, "|/n7|") < strstr(t.ptr, "|/n2998|"));
    close(fd);
    ml_text_release(&t);
    ml_text_release(&many);
    ml_http_fixture_close(s);
}

/* A browser or client that was given https:// is told, and does not wait. */
static void tls_to_a_plain_port(void) {
    static const char hello[] = "\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03";
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    int fd = ml_sock_dial(s->port);

    ml_sock_send(fd, hello, sizeof hello - 1);
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 400 ");
    CHECK_HAS(t.ptr, "TLS handshake on a plain HTTP port");
    close(fd);
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void expectations(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    ml_sock_ask(s->port,
                "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\n"
                "Connection: close\r\nContent-Length: 2\r\n\r\nok",
                &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n");
    ml_sock_ask(s->port,
                "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: a-miracle\r\n"
                "Content-Length: 2\r\n\r\nok",
                &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 417 Expectation Failed\r\n");
    CHECK(!strstr(t.ptr, "100 Continue"));
    CHECK(atomic_load(&s->n_call) == 1);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void streams(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    ml_sock_ask(s->port, "GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                &t);
    CHECK_HAS(t.ptr, "Transfer-Encoding: chunked\r\n");
    CHECK_HAS(t.ptr, "X-Break: a  X-Evil: b\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\n8\r\npiece 0,\r\n8\r\npiece 1,\r\n");
    CHECK_HAS(t.ptr, "piece 4,\r\n0\r\n\r\n");
    ml_sock_ask(s->port, "GET /counted HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                &t);
    CHECK_HAS(t.ptr, "Content-Length: 10\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\n1234567890");
    CHECK(!strstr(t.ptr, "chunked"));
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

/* A reply that is not whole never looks like one that is. */
static void cut_replies(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    static const char *const paths[] = { "/abort", "/short" };

    for (int i = 0; i < 2; i++) {
        char request[100];
        int fd = ml_sock_dial(s->port);
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", paths[i]);
        ml_sock_say(fd, request);
        ml_sock_hear(fd, &t);
        CHECK(!strstr(t.ptr, "0\r\n\r\n") || i == 1);
        CHECK(!strstr(t.ptr, "1234567890"));
        close(fd);
    }
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void chunked_requests(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    const char *request = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
                          "Connection: close\r\n\r\n5\r\nhello\r\n7;x=y\r\n, "
                          "world\r\n0\r\nTrailer: z\r\n\r\n";
    int fd;

    ml_sock_ask(s->port, request, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nhello, world");
    fd = ml_sock_dial(s->port); /* byte by byte */
    for (const char *p = request; *p; p++)
        ml_sock_send(fd, p, 1);
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "\r\n\r\nhello, world");
    close(fd);
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
                    "Expect: 100-continue\r\nConnection: close\r\n\r\n");
    ml_sock_hear_until(fd, &t, "\r\n\r\n");
    CHECK_HAS(t.ptr, "HTTP/1.1 100 Continue\r\n\r\n");
    ml_sock_say(fd, "ok");
    ml_sock_hear(fd, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nok");
    close(fd);
    ml_text_release(&t);
    ml_http_fixture_close(s);
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
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char want[32];
        snprintf(want, sizeof want, "HTTP/1.1 %s ", bad[i].status);
        ml_sock_ask(s->port, bad[i].request, &t);
        if (strncmp(t.ptr, want, strlen(want)) != 0 ||
            occurrences(t.ptr, "Content-Length:") != 1)
            ml_test_fail(__FILE__, __LINE__, "case %zu: wanted %s, got %s", i,
                         bad[i].status, t.ptr);
        CHECK_HAS(t.ptr, "Connection: close\r\n");
    }
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void limits_on_size(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 }, big = { 0 };
    int fd;

    for (int i = 0; i < 50; i++)
        ml_text_printf(&big, "%0100d", 0);
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
    ml_sock_send(fd, big.ptr, big.len);
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 431 ");
    close(fd);
    ml_sock_ask(s->port, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n",
                &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 413 ");

    /* The whole of a body that is too large is sent, and the refusal still arrives. */
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 200; i++) {
        ml_sock_say(fd, "1388\r\n");
        ml_sock_send(fd, big.ptr, big.len);
        ml_sock_say(fd, "\r\n");
    }
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 413 ");
    close(fd);

    big.len = 0;
    for (int i = 0; i < 200; i++)
        ml_text_printf(&big, "X%d: y\r\n", i);
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "GET / HTTP/1.1\r\nHost: h\r\n");
    ml_sock_send(fd, big.ptr, big.len);
    ml_sock_say(fd, "\r\n");
    CHECK(ml_sock_hear(fd, &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 431 ");
    close(fd);
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    ml_text_release(&big);
    ml_http_fixture_close(s);
}

/* Nobody calls a server that did not open. */
static void no_call(void *ud, ml_http_call *c) {
    (void)ud, (void)c;
}

static void taken_port(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_http_server *other;
    ml_loop *l;
    ml_err err = { 0 };
    char port[16];

    CHECK(ml_loop_new(&l, &err) == ML_OK);
    CHECK(ml_http_server_open(&other, l, "127.0.0.1", s->port, ml_http_fixture_limits,
                              no_call, NULL, &err) == ML_EIO);
    snprintf(port, sizeof port, "port %d", s->port);
    CHECK_HAS(err.msg, port);
    CHECK_HAS(err.msg, "in use");
    CHECK(ml_http_server_open(&other, l, "no such host", 0, ml_http_fixture_limits, no_call,
                              NULL, &err) == ML_EIO);
    CHECK_HAS(err.msg, "no such host");
    ml_loop_free(l);
    ml_http_fixture_close(s);
}

static const ml_test tests[] = {
    { "the server answers a request with path, query and headers", plain },
    { "HTTP/1.0 requests are answered without chunks", http_1_0 },
    { "kept and pipelined requests are answered in order", keep_alive_and_pipelining },
    { "a TLS handshake on the plain port is answered with a hint", tls_to_a_plain_port },
    { "Expect: 100-continue is answered", expectations },
    { "the server streams a reply in chunks", streams },
    { "a reply that is cut never looks complete", cut_replies },
    { "chunked request bodies are read", chunked_requests },
    { "malformed requests are refused", malformed },
    { "heads and bodies over their limits are refused", limits_on_size },
    { "a port in use is named", taken_port },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
