#include "net/handover.h"

#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/loop_base.h"

#define WAIT_S 10 /* for the answer of the other server */

struct ml_handover {
    struct event *arrival, *answer;
    int offered;      /* the listening socket */
    int door, caller; /* the Unix socket; the server that asked last, or -1 */
    struct sockaddr_un at;
    bool given;
    ml_loop_fn *taken;
    void *ud;
};

ml_status ml_handover_check(const char *path, ml_err *err) {
    size_t max = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;

    return strlen(path) <= max
               ? ML_OK
               : ml_fail(err, ML_EUSAGE,
                         "--handover-socket %s: a Unix socket's path has at "
                         "most %zu bytes: use a shorter one",
                         path, max);
}

static struct sockaddr_un address(const char *path) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };

    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    return at;
}

static bool is_same_user(int fd) {
    struct ucred who;
    socklen_t n = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

/* --- the new server ------------------------------------------------------------- */

/* The one descriptor that comes with a byte; -1: none came. */
static int receive_socket(int fd) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    char byte;
    struct iovec v = { &byte, 1 };
    struct msghdr m = { .msg_iov = &v,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes };
    struct cmsghdr *c;
    int got = -1;

    if (recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof got))
        memcpy(&got, CMSG_DATA(c), sizeof got);
    return got;
}

/* The port of a socket that listens; 0: it does not. */
static int listening_port(int fd) {
    struct sockaddr_storage a = { 0 };
    socklen_t n = sizeof a, m = sizeof(int);
    char port[16] = "0";
    int listens = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &m) == 0 && listens &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    return (int)strtol(port, NULL, 10);
}

static ml_status take_from(int *listening, int peer, const char *path, int port,
                           ml_err *err) {
    struct timeval limit = { .tv_sec = WAIT_S };
    int bound;

    if (!is_same_user(peer))
        return ml_fail(err, ML_EUSAGE,
                       "--handover-socket %s: another user's process listens there: use "
                       "another path",
                       path);
    setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    *listening = receive_socket(peer);
    bound = *listening < 0 ? 0 : listening_port(*listening);
    if (!bound)
        return ml_fail(err, ML_EPEER,
                       "--handover-socket %s: the process there hands over no listening "
                       "socket: end it, or use another path",
                       path);
    if (port && bound != port)
        return ml_fail(err, ML_EUSAGE,
                       "--handover-socket %s: the server there listens on port %d, not on "
                       "--port %d: use the same port",
                       path, bound, port);
    return ML_OK;
}

/* Gets the listening socket of the server at `path`: -1 if there is none.  *peer is the
 * connection to that server. */
static ml_status take(int *listening, int *peer, const char *path, int port, ml_err *err) {
    struct sockaddr_un at = address(path);
    ml_status st;

    *listening = *peer = -1;
    *peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*peer < 0)
        return ml_fail(err, ML_EIO, "--handover-socket %s: %s", path, strerror(errno));
    if (connect(*peer, (struct sockaddr *)&at, sizeof at) != 0) {
        bool none = errno == ENOENT || errno == ECONNREFUSED;
        st = none ? ML_OK
                  : ml_fail(err, ML_EIO, "--handover-socket %s: %s", path, strerror(errno));
    } else {
        st = take_from(listening, *peer, path, port, err);
        if (st == ML_OK)
            return ML_OK;
    }
    if (*listening >= 0)
        close(*listening);
    close(*peer);
    *listening = *peer = -1;
    return st;
}

/* --- the old server ------------------------------------------------------------- */

static bool send_socket(int to, int fd) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    char byte = 's';
    struct iovec v = { &byte, 1 };
    struct msghdr m = { .msg_iov = &v,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(to, &m, MSG_NOSIGNAL) == 1;
}

static void forget_caller(ml_handover *h) {
    if (h->answer)
        event_free(h->answer);
    if (h->caller >= 0)
        close(h->caller);
    h->answer = NULL;
    h->caller = -1;
}

/* A byte: the new server accepts connections.  No byte: it failed, and this one goes on. */
static void on_answer(evutil_socket_t fd, short what, void *ud) {
    ml_handover *h = ud;
    char byte;
    bool begun = what & EV_READ && read((int)fd, &byte, 1) == 1;

    forget_caller(h);
    if (!begun)
        return;
    h->given = true;
    event_del(h->arrival);
    h->taken(h->ud);
}

static void on_arrival(evutil_socket_t fd, short what, void *ud) {
    ml_handover *h = ud;
    struct timeval limit = { .tv_sec = WAIT_S };
    int caller = accept4((int)fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)what;
    if (caller < 0)
        return;
    forget_caller(h);
    h->caller = caller;
    if (is_same_user(caller) && send_socket(caller, h->offered))
        h->answer = event_new(event_get_base(h->arrival), caller, EV_READ, on_answer, h);
    if (!h->answer || event_add(h->answer, &limit) != 0)
        forget_caller(h);
}

/* Replaces the socket of the server before this one; only this user may connect. */
static ml_status open_door(ml_handover *h, ml_err *err) {
    mode_t mask;
    bool bound;

    h->door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(h->at.sun_path);
    mask = umask(077);
    bound = h->door >= 0 && bind(h->door, (struct sockaddr *)&h->at, sizeof h->at) == 0;
    umask(mask);
    if (bound && listen(h->door, 4) == 0)
        return ML_OK;
    return ml_fail(err, ML_EIO, "--handover-socket %s: %s", h->at.sun_path,
                   strerror(errno));
}

/* Offers the socket, and tells `peer`, unless it is -1, that this server accepts now. */
static ml_status offer(ml_handover **out, ml_loop *l, const char *path, int listening,
                       int peer, ml_loop_fn *taken, void *ud, ml_err *err) {
    ml_handover *h = ml_net_take(sizeof *h);
    ml_status st;

    *h = (ml_handover){ .offered = listening,
                        .door = -1,
                        .caller = -1,
                        .at = address(path),
                        .taken = taken,
                        .ud = ud };
    st = open_door(h, err);
    if (st == ML_OK) {
        h->arrival =
            event_new(ml_loop_base(l), h->door, EV_READ | EV_PERSIST, on_arrival, h);
        if (!h->arrival || event_add(h->arrival, NULL) != 0)
            st = ml_fail(err, ML_ENOMEM, "out of memory for --handover-socket");
    }
    if (st == ML_OK && peer >= 0 && send(peer, "k", 1, MSG_NOSIGNAL) != 1)
        st = ml_fail(err, ML_EPEER, "--handover-socket %s: the server there has ended: %s",
                     path, strerror(errno));
    if (st == ML_OK)
        *out = h;
    else
        ml_handover_close(h);
    return st;
}

void ml_handover_close(ml_handover *h) {
    if (!h)
        return;
    forget_caller(h);
    if (h->arrival)
        event_free(h->arrival);
    if (h->door >= 0) {
        close(h->door);
        if (!h->given) /* otherwise the path is the next server's */
            unlink(h->at.sun_path);
    }
    free(h);
}

/* --- both ------------------------------------------------------------------------- */

ml_status ml_handover_open(ml_http_server **out, ml_handover **h, ml_loop *l,
                           const ml_listen *w, ml_http_limits limits, ml_http_handler *fn,
                           ml_loop_fn *taken, void *ud, ml_err *err) {
    int listening = -1, peer = -1;
    ml_http_server *s = NULL;
    ml_status st = w->path ? take(&listening, &peer, w->path, w->port, err) : ML_OK;

    *h = NULL;
    if (st == ML_OK && listening >= 0)
        st = ml_http_server_adopt(&s, l, listening, limits, fn, ud, err);
    else if (st == ML_OK)
        st = ml_http_server_open(&s, l, w->host, w->port, limits, fn, ud, err);
    if (st == ML_OK && w->path)
        st = offer(h, l, w->path, ml_http_server_socket(s), peer, taken, ud, err);
    if (peer >= 0)
        close(peer);
    if (st == ML_OK)
        *out = s;
    else
        ml_http_server_close(s);
    return st;
}
