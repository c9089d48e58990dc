#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/load/load.h"

typedef struct rowdy {
    load *load;
    pthread_t thread;
    uint64_t random;
} rowdy;

struct load_rowdies {
    rowdy *rowdy; /* [n] */
    int n;
};

static int dial(const load *l, int receive_buffer) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)l->port) };
    struct timeval tv = { .tv_sec = 60 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    if (receive_buffer)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool say(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        bytes += k;
        n -= (size_t)k;
    }
    return true;
}

/* The status of the reply; 0 if there is none. */
static int hear_status(int fd) {
    char buf[512];
    size_t n = 0;
    ssize_t k;

    while (n < 12 && (k = recv(fd, buf + n, sizeof buf - 1 - n, 0)) > 0)
        n += (size_t)k;
    buf[n] = 0;
    return strncmp(buf, "HTTP/1.1 ", 9) == 0 ? atoi(buf + 9) : 0;
}

static void speak_nonsense(rowdy *r) {
    static const struct {
        const char *bytes;
        int status;
    } bad[] = {
        { "GET / HTTP/1.1\r\n\r\n", 400 },
        { "\x16\x03\x01\x02\x01\r\n\r\n", 400 },
        { "\x16\x03\x01\x02\x01", 400 },
        { "POST /generate HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\nContent-Length: "
          "9\r\n\r\n",
          417 },
        { "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
          "Transfer-Encoding: chunked\r\n\r\n",
          400 },
        { "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400 },
        { "BREW /generate HTTP/1.1\r\nHost: localhost\r\n\r\n", 501 },
        { "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
          "chunked\r\n\r\nzz\r\n",
          400 },
        { "GET /no/such/path HTTP/1.1\r\nHost: localhost\r\n\r\n", 404 },
    };
    int n = (int)(sizeof bad / sizeof *bad);
    int i = load_random(&r->random, n), fd = dial(r->load, 0), status;

    if (fd < 0) {
        load_fail(r->load, "a rowdy client could not connect");
        return;
    }
    say(fd, bad[i].bytes, strlen(bad[i].bytes));
    status = hear_status(fd);
    if (status != bad[i].status)
        load_fail(r->load, "nonsense %d: status %d instead of %d", i, status,
                  bad[i].status);
    atomic_fetch_add(&r->load->n_refused, 1);
    close(fd);
}

static void send_too_much(rowdy *r) {
    static const char piece[8192];
    int fd = dial(r->load, 0), status;
    char head[200];
    size_t n = r->load->max_body + 1;

    if (fd < 0)
        return;
    snprintf(head, sizeof head,
             "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             n);
    say(fd, head, strlen(head));
    for (; n; n -= n < sizeof piece ? n : sizeof piece)
        if (!say(fd, piece, n < sizeof piece ? n : sizeof piece))
            break;
    status = hear_status(fd);
    if (status != 413)
        load_fail(r->load, "a body that is too large: status %d instead of 413", status);
    atomic_fetch_add(&r->load->n_refused, 1);
    close(fd);
}

/* Disconnects in the middle of its own request. */
static void send_half(rowdy *r) {
    static const char half[] =
        "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{";
    int fd = dial(r->load, 0);

    if (fd < 0)
        return;
    say(fd, half, (size_t)(1 + load_random(&r->random, (int)sizeof half - 1)));
    close(fd);
}

/* Slowloris: sends a few bytes now and then, which would hold a connection for hours. */
static void send_slowly(rowdy *r) {
    static const char head[] = "POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    int fd = dial(r->load, 0);

    if (fd < 0)
        return;
    say(fd, head, sizeof head - 1);
    for (int i = 0; i < 20 && say(fd, "a", 1); i++)
        usleep(10000);
    close(fd);
}

/* Sends lists that cost the server far more than the client, and that it must reject. */
static void send_long_lists(rowdy *r) {
    static const char *const head[] = {
        "{\"text\": \"a\", \"sampling_params\": {\"stop_token_ids\": [1",
        "{\"text\": \"a\", \"return_logprob\": true, \"token_ids_logprob\": [1",
    };
    static const char *const tail[] = { "]}}", "]}" };
    int i = load_random(&r->random, 2), fd = dial(r->load, 0), status;
    ml_text body = { 0 }, request = { 0 };

    if (fd < 0)
        return;
    ml_text_printf(&body, "%s", head[i]);
    while (body.len + 100 < r->load->max_body && body.len < 200000)
        ml_text_add(&body, ",1", 2);
    ml_text_printf(&body, "%s", tail[i]);
    ml_text_printf(
        &request,
        "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
        body.len, body.ptr);
    say(fd, request.ptr, request.len);
    status = hear_status(fd);
    if (status != 400)
        load_fail(r->load, "a list that is too long: status %d instead of 400", status);
    atomic_fetch_add(&r->load->n_refused, 1);
    close(fd);
    ml_text_release(&body);
    ml_text_release(&request);
}

/* Shuts down its sending side after the request, and still expects the answer. */
static void close_half(rowdy *r) {
    const load_case *c = &r->load->cases[load_random(&r->random, LOAD_CASES)];
    int fd = dial(r->load, 0), status;
    ml_text body = { 0 }, request = { 0 };

    if (fd < 0)
        return;
    load_case_generate(c, false, NULL, &body);
    ml_text_printf(
        &request,
        "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
        body.len, body.ptr);
    say(fd, request.ptr, request.len);
    shutdown(fd, SHUT_WR);
    status = hear_status(fd);
    if (status != 200 && status != 100)
        load_fail(r->load, "a half-closed client: status %d instead of 200", status);
    close(fd);
    ml_text_release(&body);
    ml_text_release(&request);
}

static void read_slowly(rowdy *r) {
    const load_case *c = &r->load->cases[load_random(&r->random, LOAD_CASES)];
    int fd = dial(r->load, 2048), n = load_random(&r->random, 300);
    ml_text body = { 0 }, request = { 0 };
    char buf[64];

    if (fd < 0)
        return;
    load_case_generate(c, true, NULL, &body);
    ml_text_printf(&request,
                   "POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   body.len, body.ptr);
    say(fd, request.ptr, request.len);
    while (n-- > 0 && recv(fd, buf, sizeof buf, 0) > 0)
        usleep(1000);
    atomic_fetch_add(&r->load->n_slow, 1);
    close(fd);
    ml_text_release(&body);
    ml_text_release(&request);
}

static void *be_rowdy(void *ud) {
    static void (*const ways[])(rowdy *
                                r) = { speak_nonsense, speak_nonsense,  send_too_much,
                                       send_half,      read_slowly,     read_slowly,
                                       send_slowly,    send_long_lists, close_half };
    rowdy *r = ud;

    while (!atomic_load(&r->load->stopping)) {
        ways[load_random(&r->random, (int)(sizeof ways / sizeof *ways))](r);
        atomic_fetch_add(&r->load->n_rowdy, 1);
        usleep((useconds_t)load_random(&r->random, 20000));
    }
    return NULL;
}

load_rowdies *load_rowdies_start(load *l, int n) {
    load_rowdies *all = calloc(1, sizeof *all);

    all->n = n;
    all->rowdy = calloc((size_t)n, sizeof *all->rowdy);
    for (int i = 0; i < n; i++) {
        rowdy *r = &all->rowdy[i];
        r->load = l;
        r->random = (uint64_t)l->seed * 31 + (uint64_t)i * 65537 + 1;
        pthread_create(&r->thread, NULL, be_rowdy, r);
    }
    return all;
}

void load_rowdies_join(load_rowdies *all) {
    for (int i = 0; i < all->n; i++)
        pthread_join(all->rowdy[i].thread, NULL);
    free(all->rowdy);
    free(all);
}
