#include "net/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static void name_peer(ml_tcp *t, const struct sockaddr *at, socklen_t len) {
    char host[64] = "?", port[16] = "?";

    getnameinfo(at, len, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(t->peer, sizeof t->peer, "%s:%s", host, port);
}

static ml_status find_addresses(struct addrinfo **out, const char *host, const char *port,
                                int type, ml_err *err) {
    struct addrinfo hints = { .ai_socktype = type };
    int code = getaddrinfo(host, port, &hints, out);

    return code == 0
               ? ML_OK
               : ml_fail(err, ML_EIO, "cannot resolve %s: %s", host, gai_strerror(code));
}

/* True when the socket is ready, false when the limit has passed; interrupted waits go on. */
static bool await(int fd, short events, double limit_s) {
    struct pollfd p = { .fd = fd, .events = events };
    int n;

    do
        n = poll(&p, 1, limit_s > 0 ? (int)(limit_s * 1e3) + 1 : -1);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

static void set_options(int fd) {
    int on = 1;

    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* --- opening ------------------------------------------------------------------ */

ml_status ml_tcp_listen(int *fd, int *port, const char *host, ml_err *err) {
    struct sockaddr_storage at;
    struct addrinfo *list = NULL;
    socklen_t len = sizeof at;
    char text[16] = "";
    ml_status st = find_addresses(&list, host, "0", SOCK_STREAM, err);

    if (st != ML_OK)
        return st;
    *fd = socket(list->ai_family, SOCK_STREAM, 0);
    if (*fd < 0 || bind(*fd, list->ai_addr, list->ai_addrlen) != 0 ||
        listen(*fd, BACKLOG) != 0 || getsockname(*fd, (struct sockaddr *)&at, &len) != 0)
        st = ml_fail(err, ML_EIO, "cannot listen at %s: %s", host, strerror(errno));
    freeaddrinfo(list);
    if (st != ML_OK) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        return st;
    }
    set_options(*fd);
    getnameinfo((struct sockaddr *)&at, len, NULL, 0, text, sizeof text, NI_NUMERICSERV);
    sscanf(text, "%d", port);
    return ML_OK;
}

ml_status ml_tcp_accept(ml_tcp *out, int fd, double wait_s, double idle_s, ml_err *err) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;

    if (!await(fd, POLLIN, wait_s))
        return ML_EAGAIN;
    *out = (ml_tcp){ .fd = accept(fd, (struct sockaddr *)&at, &len), .idle_s = idle_s };
    if (out->fd < 0)
        return errno == EINVAL || errno == EBADF
                   ? ml_fail(err, ML_EIO, "cannot accept a connection: %s", strerror(errno))
                   : ML_EAGAIN;
    set_options(out->fd);
    name_peer(out, (struct sockaddr *)&at, len);
    return ML_OK;
}

/* One address; 0 or an errno. */
static int try_address(ml_tcp *t, const struct addrinfo *a) {
    int code = 0;
    socklen_t len = sizeof code;

    t->fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (t->fd < 0)
        return errno;
    set_options(t->fd);
    name_peer(t, a->ai_addr, a->ai_addrlen);
    if (connect(t->fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        code = errno;
    else if (!await(t->fd, POLLOUT, t->idle_s))
        code = ETIMEDOUT;
    else
        getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &code, &len);
    if (code)
        ml_tcp_close(t);
    return code;
}

ml_status ml_tcp_connect(ml_tcp *out, const char *host, int port, double idle_s,
                         ml_err *err) {
    struct addrinfo *list = NULL;
    char text[16];
    int code = 0;
    ml_status st;

    *out = (ml_tcp){ .fd = -1, .idle_s = idle_s };
    snprintf(text, sizeof text, "%d", port);
    st = find_addresses(&list, host, text, SOCK_STREAM, err);
    if (st != ML_OK)
        return st;
    for (const struct addrinfo *a = list; a && out->fd < 0; a = a->ai_next)
        code = try_address(out, a);
    freeaddrinfo(list);
    return out->fd >= 0 ? ML_OK
                        : ml_fail(err, ML_EPEER, "cannot connect to %s:%d: %s", host, port,
                                  strerror(code));
}

void ml_tcp_close(ml_tcp *t) {
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

void ml_tcp_break(ml_tcp *t) {
    if (t->fd >= 0)
        shutdown(t->fd, SHUT_RDWR);
}

/* --- bytes -------------------------------------------------------------------- */

static ml_status fail_wait(const ml_tcp *t, ml_err *err) {
    return ml_fail(err, ML_EPEER, "%s has sent or taken no byte for %g s", t->peer,
                   t->idle_s);
}

ml_status ml_tcp_write(ml_tcp *t, const void *bytes, size_t n, ml_err *err) {
    const char *p = bytes;

    while (n > 0) {
        ssize_t k = send(t->fd, p, n, MSG_NOSIGNAL);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && errno != EAGAIN && errno != EINTR) {
            return ml_fail(err, ML_EPEER, "cannot send to %s: %s", t->peer,
                           strerror(errno));
        } else if (!await(t->fd, POLLOUT, t->idle_s)) {
            return fail_wait(t, err);
        }
    }
    return ML_OK;
}

/* first_s: limit of the wait for the first byte; 0: none. */
static ml_status read_all(ml_tcp *t, char *p, size_t n, double first_s, ml_err *err) {
    size_t whole = n;

    while (n > 0) {
        ssize_t k = recv(t->fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k == 0) {
            ml_fail(err, ML_EPEER, "%s closed the connection after %zu of %zu bytes",
                    t->peer, whole - n, whole);
            return n == whole && first_s == 0 ? ML_EAGAIN : ML_EPEER;
        } else if (errno != EAGAIN && errno != EINTR) {
            return ml_fail(err, ML_EPEER, "cannot read from %s: %s", t->peer,
                           strerror(errno));
        } else if (!await(t->fd, POLLIN, n == whole ? first_s : t->idle_s)) {
            return fail_wait(t, err);
        }
    }
    return ML_OK;
}

ml_status ml_tcp_read(ml_tcp *t, void *bytes, size_t n, ml_err *err) {
    return read_all(t, bytes, n, t->idle_s, err);
}

ml_status ml_tcp_read_next(ml_tcp *t, void *bytes, size_t n, ml_err *err) {
    return read_all(t, bytes, n, 0, err);
}

/* --- addresses ---------------------------------------------------------------- */

/* A UDP socket that is connected has sent nothing, and knows its route. */
ml_status ml_tcp_address_towards(char out[64], const char *host, ml_err *err) {
    struct sockaddr_storage at;
    struct addrinfo *list = NULL;
    socklen_t len = sizeof at;
    int fd = -1;
    ml_status st = find_addresses(&list, host, "9", SOCK_DGRAM, err);

    if (st != ML_OK)
        return st;
    fd = socket(list->ai_family, SOCK_DGRAM, 0);
    if (fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0 ||
        getnameinfo((struct sockaddr *)&at, len, out, 64, NULL, 0, NI_NUMERICHOST) != 0)
        st = ml_fail(err, ML_EIO, "no route to %s: %s", host, strerror(errno));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(list);
    return st;
}
