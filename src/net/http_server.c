#include "net/http_server.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http_conn.h"
#include "net/loop_base.h"

#define BACKLOG 4096
#define REFUSING                                                                           \
    64 /* connections beyond the limit that get a 503; further ones are just closed */
#define OTHER_FILES (REFUSING + 192) /* descriptors that are not clients' connections */
#define PAUSE_S 0.1 /* before accepting again when out of file descriptors */

static void resume(void *ud) {
    ml_http_server *s = ud;

    ml_timer_stop(s->pause);
    s->pause = NULL;
    if (s->listener)
        evconnlistener_enable(s->listener);
}

/* Usually the process is out of file descriptors; an immediate retry would busy-loop. */
static void accept_failed(struct evconnlistener *listener, void *ud) {
    ml_http_server *s = ud;

    evconnlistener_disable(listener);
    if (!s->pause)
        s->pause = ml_timer_start(s->loop, PAUSE_S, false, resume, s);
}

static void accepted(struct evconnlistener *listener, evutil_socket_t fd,
                     struct sockaddr *addr, int addr_len, void *ud) {
    ml_http_server *s = ud;
    char host[64] = "";

    (void)listener;
    if (s->n_conn >= s->limits.max_connections + REFUSING) {
        close((int)fd);
        return;
    }
    getnameinfo(addr, (socklen_t)addr_len, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    ml_http_conn_open(s, (int)fd, host);
}

/* Raises the soft limit of file descriptors to the hard limit.  Connections beyond what it
 * allows would neither be answered nor refused. */
static int bound_by_files(int max_connections) {
    struct rlimit r;
    rlim_t files;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return max_connections;
    files = r.rlim_cur;
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &r) == 0)
        files = r.rlim_max;
    if (files == RLIM_INFINITY || files >= (rlim_t)max_connections + OTHER_FILES)
        return max_connections;
    return files > OTHER_FILES ? (int)(files - OTHER_FILES) : 1;
}

static int bound_port(struct evconnlistener *l) {
    struct sockaddr_storage a = { 0 };
    socklen_t n = sizeof a;
    char port[16] = "0";

    if (getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&a, &n) == 0)
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    return (int)strtol(port, NULL, 10);
}

/* Binds the first of the host's addresses that can be bound. */
static ml_status listen_at(ml_http_server *s, const char *host, int port, ml_err *err) {
    struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *all;
    char service[16];
    int gai, why;

    snprintf(service, sizeof service, "%d", port);
    gai = getaddrinfo(host, service, &hints, &all);
    if (gai != 0)
        return ml_fail(err, ML_EIO, "host %s: %s; use an address of this machine", host,
                       gai_strerror(gai));
    for (struct addrinfo *a = all; a && !s->listener; a = a->ai_next)
        s->listener = evconnlistener_new_bind(ml_loop_base(s->loop), accepted, s,
                                              LEV_OPT_CLOSE_ON_FREE |
                                                  LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                              BACKLOG, a->ai_addr, (int)a->ai_addrlen);
    why = errno;
    freeaddrinfo(all);
    if (!s->listener)
        return ml_fail(err, ML_EIO, "cannot listen on %s port %d: %s", host, port,
                       strerror(why));
    return ML_OK;
}

static ml_http_server *new_server(ml_loop *l, ml_http_limits limits, ml_http_handler *fn,
                                  void *ud) {
    ml_http_server *s = ml_net_take(sizeof *s);

    limits.max_connections = bound_by_files(limits.max_connections);
    *s = (ml_http_server){ .loop = l, .limits = limits, .fn = fn, .ud = ud };
    return s;
}

/* Frees the server if it does not listen. */
static ml_status listens(ml_http_server **out, ml_http_server *s, ml_status st) {
    if (st != ML_OK) {
        free(s);
        return st;
    }
    evconnlistener_set_error_cb(s->listener, accept_failed);
    s->port = bound_port(s->listener);
    *out = s;
    return ML_OK;
}

ml_status ml_http_server_open(ml_http_server **out, ml_loop *l, const char *host, int port,
                              ml_http_limits limits, ml_http_handler *fn, void *ud,
                              ml_err *err) {
    ml_http_server *s = new_server(l, limits, fn, ud);

    return listens(out, s, listen_at(s, host, port, err));
}

ml_status ml_http_server_adopt(ml_http_server **out, ml_loop *l, int listening,
                               ml_http_limits limits, ml_http_handler *fn, void *ud,
                               ml_err *err) {
    ml_http_server *s = new_server(l, limits, fn, ud);
    ml_status st = ML_OK;

    s->listener =
        evconnlistener_new(ml_loop_base(l), accepted, s,
                           LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, listening);
    if (!s->listener) {
        st = ml_fail(err, ML_EIO,
                     "cannot accept connections of a socket that was handed over");
        close(listening);
    }
    return listens(out, s, st);
}

void ml_http_server_set_gate(ml_http_server *s, ml_http_gate *fn, void *ud) {
    s->gate = fn;
    s->gate_ud = ud;
}

void ml_http_server_set_observer(ml_http_server *s, ml_http_observer *fn, void *ud) {
    s->observer = fn;
    s->observer_ud = ud;
}

void ml_http_server_set_tls(ml_http_server *s, ml_tls *t) {
    s->tls = t;
}

int ml_http_server_port(const ml_http_server *s) {
    return s->port;
}

int ml_http_server_connections(const ml_http_server *s) {
    return s->n_conn;
}

int ml_http_server_max_connections(const ml_http_server *s) {
    return s->limits.max_connections;
}

int ml_http_server_socket(const ml_http_server *s) {
    return (int)evconnlistener_get_fd(s->listener);
}

static void close_idle(void *ud) {
    ml_http_server *s = ud;

    for (ml_http_conn *c = s->first; c; c = c->next)
        if (!c->call && ml_http_reader_fresh(&c->reader) && c->state == ML_CONN_OPEN)
            ml_http_conn_close(c);
}

void ml_http_server_stop_accepting(ml_http_server *s, double grace_s) {
    if (!s->listener)
        return;
    evconnlistener_free(s->listener);
    s->listener = NULL;
    for (ml_http_conn *c = s->first; c; c = c->next)
        if (c->call)
            c->call->keep = false;
    if (grace_s > 0)
        s->grace = ml_timer_start(s->loop, grace_s, false, close_idle, s);
    else
        close_idle(s);
}

void ml_http_server_close(ml_http_server *s) {
    if (!s)
        return;
    if (s->listener)
        evconnlistener_free(s->listener);
    ml_timer_stop(s->pause);
    ml_timer_stop(s->grace);
    while (s->first) {
        /* libevent closes the socket only when the loop runs again, if it does. */
        shutdown(bufferevent_getfd(s->first->bev), SHUT_RDWR);
        ml_http_conn_drop(s->first);
    }
    free(s);
}
