/* Connections of the HTTP server: how many, how long, and how either side ends them. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/http_fixture.h"
#include "tests/support/sock.h"
#include "tests/support/test.h"

/* Waits until a counter of the server's thread has this value. */
static bool becomes(atomic_int *x, int value) {
    for (int i = 0; i < 5000 && atomic_load(x) != value; i++)
        usleep(1000);
    return atomic_load(x) == value;
}

static void limit_on_connections(void) {
    ml_http_limits few = ml_http_fixture_limits;
    ml_text t = { 0 };
    int fd[3];
    ml_http_fixture *s;

    few.max_connections = 2;
    s = ml_http_fixture_open(few);
    for (int i = 0; i < 2; i++) {
        fd[i] = ml_sock_dial(s->port);
        ml_sock_say(fd[i], "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        ml_sock_hear_until(fd[i], &t, "ok");
    }
    fd[2] = ml_sock_dial(s->port);
    ml_sock_say(fd[2], "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(ml_sock_hear(fd[2], &t) == 0);
    CHECK_HAS(t.ptr, "HTTP/1.1 503 ");
    close(fd[2]);
    close(fd[0]);
    for (int i = 0; i < 500; i++) { /* the server has to see that one has gone */
        ml_sock_ask(s->port, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &t);
        if (!strstr(t.ptr, "HTTP/1.1 503 "))
            break;
        usleep(10000);
    }
    CHECK_HAS(t.ptr, "HTTP/1.1 200 ");
    close(fd[1]);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void idle_connections_end(void) {
    ml_http_limits brisk = ml_http_fixture_limits;
    ml_text t = { 0 };
    double start;
    ml_http_fixture *s;
    int fd;

    brisk.idle_s = 0.2;
    s = ml_http_fixture_open(brisk);
    start = ml_clock_s();
    ml_sock_ask(s->port, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nha",
                &t);
    CHECK(t.len == 0 && ml_clock_s() - start < 5);
    CHECK(atomic_load(&s->n_call) == 0);
    /* While its answer is made, a client may be silent. */
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 1));
    usleep(500000);
    CHECK(atomic_load(&s->n_gone) == 0);
    close(fd);
    CHECK(becomes(&s->n_gone, 1));
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void vanishing_clients(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    int fd = ml_sock_dial(s->port);

    ml_sock_say(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 1));
    close(fd);
    CHECK(becomes(&s->n_gone, 1));

    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "GET /hold-begun HTTP/1.1\r\nHost: h\r\n\r\n");
    ml_sock_hear_until(fd, &t, "first");
    close(fd);
    CHECK(becomes(&s->n_gone, 2));

    /* In the middle of a request: nobody is told, nothing stays. */
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\nabc");
    close(fd);
    /* One that only stops sending still gets an answer that is ready. */
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
    shutdown(fd, SHUT_WR);
    ml_sock_hear(fd, &t);
    CHECK_HAS(t.ptr, "\r\n\r\nok");
    close(fd);
    CHECK(atomic_load(&s->n_gone) == 2);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

/* A client that shuts down its side after its requests is answered, as long as it reads. */
static void half_closed_clients(void) {
    static const char *const request[] = {
        "GET /later HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /later HTTP/1.0\r\n\r\n",
        ("GET /later HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\n"
         "Content-Length: 4\r\n\r\nlast"),
    };
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };

    for (int i = 0; i < 3; i++) {
        int fd = ml_sock_dial(s->port);
        ml_sock_say(fd, request[i]);
        shutdown(fd, SHUT_WR);
        CHECK(ml_sock_hear(fd, &t) == 0);
        CHECK_HAS(t.ptr, "\r\n\r\nlater");
        CHECK(i < 2 || strstr(t.ptr, "\r\n\r\nlast"));
        close(fd);
    }
    CHECK(atomic_load(&s->n_gone) == 0);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

/* A request that comes byte by byte, each in time, is late as a whole. */
static void slow_requests(void) {
    static const char *const request[] = { "GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ",
                                           "POST /echo HTTP/1.1\r\nHost: h\r\n"
                                           "Content-Length: 90000\r\n\r\n" };
    static const char *const why[] = { "timed out reading the request headers",
                                       "timed out reading the request body" };
    ml_http_limits strict = ml_http_fixture_limits;
    ml_text t = { 0 };
    ml_http_fixture *s;

    strict.head_s = strict.body_s = 0.3;
    strict.min_rate = 1e6;
    s = ml_http_fixture_open(strict);
    for (int i = 0; i < 2; i++) {
        int fd = ml_sock_dial(s->port);
        ml_sock_say(fd, request[i]);
        for (int k = 0; k < 30; k++) {
            if (send(fd, "a", 1, MSG_NOSIGNAL) < 0)
                break;
            usleep(20000);
        }
        ml_sock_hear(fd, &t);
        CHECK_HAS(t.ptr, "HTTP/1.1 408 ");
        CHECK_HAS(t.ptr, why[i]);
        close(fd);
    }
    CHECK(atomic_load(&s->n_call) == 0);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static bool falls_to(ml_budget *b, size_t bytes) {
    for (int i = 0; i < 5000 && atomic_load(&b->used) != bytes; i++)
        usleep(1000);
    return atomic_load(&b->used) == bytes;
}

/* The bodies of all connections together are bounded, said beforehand or not. */
static void budget_of_bodies(void) {
    ml_http_limits tight = ml_http_fixture_limits;
    ml_budget budget = { .max = 1000 };
    ml_text t = { 0 };
    ml_http_fixture *s;
    int fd;

    tight.budget = &budget;
    s = ml_http_fixture_open(tight);
    fd = ml_sock_dial(s->port);
    ml_sock_say(fd, "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 800\r\n\r\n");
    for (int i = 0; i < 100; i++)
        ml_sock_say(fd, "01234567");
    CHECK(becomes(&s->n_call, 1));
    CHECK(atomic_load(&budget.used) == 800);
    ml_sock_ask(s->port, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 300\r\n\r\n",
                &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 503 ");
    CHECK_HAS(t.ptr, "Retry-After: 1\r\n");
    CHECK_HAS(t.ptr, "too many bytes of requests in flight");
    ml_sock_ask(
        s->port,
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "12c\r\nabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc"
        "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcab"
        "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcab",
        &t);
    CHECK_HAS(t.ptr, "HTTP/1.1 503 ");
    CHECK(falls_to(&budget, 800));
    close(fd);
    CHECK(becomes(&s->n_gone, 1) && falls_to(&budget, 0));
    ml_sock_ask(s->port,
                "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n"
                "Connection: close\r\n\r\nfits",
                &t);
    CHECK_HAS(t.ptr, "\r\n\r\nfits");
    CHECK(falls_to(&budget, 0));
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void slow_readers(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    int fd = ml_sock_dial(s->port);

    ml_sock_say(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_gone, 1));
    ml_sock_hear(fd, &t);
    CHECK(t.len < (size_t)400 << 16);
    close(fd);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void closing_with_calls_pending(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    int fd = ml_sock_dial(s->port), other = ml_sock_dial(s->port);
    atomic_int *n_gone = &s->n_gone;

    ml_sock_say(fd, "GET /hold-begun HTTP/1.1\r\nHost: h\r\n\r\n");
    ml_sock_hear_until(fd, &t, "first");
    ml_sock_say(other, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    CHECK(ml_http_server_connections(s->server) == 2);
    ml_http_server_close(s->server);
    CHECK(atomic_load(n_gone) == 1);
    ml_sock_hear(fd, &t);
    CHECK(strcmp(t.ptr, "\r\n") == 0); /* no last chunk */
    close(fd);
    close(other);
    ml_loop_free(s->loop);
    free(s);
    ml_text_release(&t);
}

static void stop_accepting(void *ud) {
    ml_http_fixture *s = ud;
    ml_http_server_stop_accepting(s->server, 0);
    if (s->held)
        ml_http_reply(s->held, 200, "text/plain", ml_str_of("done"));
}

static void draining(void) {
    ml_http_fixture *s = ml_http_fixture_open(ml_http_fixture_limits);
    ml_text t = { 0 };
    int busy = ml_sock_dial(s->port), idle = ml_sock_dial(s->port), late;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port) };

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ml_sock_say(idle, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
    ml_sock_hear_until(idle, &t, "ok");
    ml_sock_say(busy, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(becomes(&s->n_call, 2));
    ml_loop_post(s->loop, stop_accepting, s);
    CHECK(ml_sock_hear(busy, &t) == 0);
    CHECK_HAS(t.ptr, "Connection: close\r\n");
    CHECK_HAS(t.ptr, "\r\n\r\ndone");
    CHECK(ml_sock_hear(idle, &t) == 0 && t.len == 0);
    late = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(late, (struct sockaddr *)&a, sizeof a) != 0);
    close(late);
    close(busy);
    close(idle);
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static void a_thousand_connections(void) {
    enum { N = 1000 };
    ml_http_limits wide = ml_http_fixture_limits;
    ml_text t = { 0 };
    static int fd[N];
    ml_http_fixture *s;

    wide.max_connections = N;
    s = ml_http_fixture_open(wide); /* which raises this process' limit on descriptors */
    for (int i = 0; i < N; i++)
        fd[i] = ml_sock_dial(s->port);
    for (int i = 0; i < N; i++)
        ml_sock_say(fd[i], "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
    for (int i = 0; i < N; i++) {
        ml_sock_hear_until(fd[i], &t, "later");
        CHECK_HAS(t.ptr, "later");
        close(fd[i]);
    }
    ml_text_release(&t);
    ml_http_fixture_close(s);
}

static const ml_test tests[] = {
    { "connections over the limit are refused with 503", limit_on_connections },
    { "idle connections are closed", idle_connections_end },
    { "a client that disconnects ends its call", vanishing_clients },
    { "a client that shuts down its side is still answered", half_closed_clients },
    { "a request that drips is refused with 408", slow_requests },
    { "bodies of all connections share one budget", budget_of_bodies },
    { "a client that does not read is disconnected", slow_readers },
    { "a server closes with calls pending", closing_with_calls_pending },
    { "a draining server ends idle connections and finishes calls", draining },
    { "a thousand connections are served", a_thousand_connections },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
