/* http_conn.h - a connection of the server and its call, internal to this module.
 *
 * A connection has one call at a time: pipelined requests wait in the socket, so that
 * replies are sent in order.  Only the event loop frees a connection, never a function that
 * the owner of a call may call: such a function sets a flag and activates the event
 * `settle`, which handles it. */
#ifndef ML_NET_HTTP_CONN_H
#define ML_NET_HTTP_CONN_H

#include "net/http_reader.h"
#include "net/http_server.h"

struct bufferevent;
struct event;
struct evconnlistener;

typedef struct ml_http_conn ml_http_conn;

struct ml_http_server {
    ml_loop *loop;
    struct evconnlistener *listener; /* NULL: accepts no more connections */
    ml_timer *pause;                 /* set while the process is out of file descriptors */
    ml_timer *grace;                 /* of idle connections, after the listener is closed */
    ml_http_limits limits;
    ml_http_handler *fn;
    void *ud;
    ml_http_gate *gate; /* NULL: every request passes */
    void *gate_ud;
    ml_http_observer *observer; /* NULL: none */
    void *observer_ud;
    ml_tls *tls; /* NULL: plain HTTP */
    int port, n_conn;
    ml_http_conn *first;
};

typedef enum ml_conn_state {
    ML_CONN_OPEN,    /* reads a request, or waits for the handler's reply */
    ML_CONN_CLOSING, /* sends the remaining output */
    ML_CONN_LINGER,  /* has sent all; discards further input, because closing with unread
                        input sends a reset, which could destroy the reply */
} ml_conn_state;

struct ml_http_conn {
    ml_http_server *server;
    ml_http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *settle;
    struct event *clock; /* armed while a request has a deadline or a client is probed */
    ml_conn_state state;
    bool cut;       /* the next settle event frees it */
    bool eof;       /* the client has shut down its sending side */
    bool handshake; /* of TLS, not complete yet */
    ml_http_reader reader;
    double began_s; /* clock at the first byte of the request; 0: it arrived in one piece */
    double head_at_s;   /* clock when its head was complete; 0: not yet */
    size_t counted;     /* bytes of the body charged to the server's budget */
    ml_text path, body; /* of the current request */
    ml_str query, target;
    ml_http_call *call; /* NULL while reading a request */
    void *tag;          /* of the current request */
    double gate_s;      /* clock when its head was read; 0: between two requests */
    char peer[64];
};

struct ml_http_call {
    ml_http_conn *conn;
    ml_loop_fn *gone;
    void *gone_ud;
    ml_text headers; /* of the reply */
    bool keep;       /* keep the connection alive after this reply */
    bool no_body;    /* the reply has no body; writes are discarded */
    bool begun, chunked, counted;
    int status;  /* of the reply; 0: not begun */
    size_t left; /* if counted: remaining bytes */
};

/* Takes ownership of fd. */
void ml_http_conn_open(ml_http_server *s, int fd, const char *peer);
/* Frees it, and calls on_gone of its call. */
void ml_http_conn_drop(ml_http_conn *c);
/* Schedules it to be freed by the event loop. */
void ml_http_conn_cut(ml_http_conn *c);
/* Closes it after the remaining output has been sent. */
void ml_http_conn_close(ml_http_conn *c);
/* Called when the call has been answered: reads the next request, or closes. */
void ml_http_conn_answered(ml_http_conn *c, bool keep);
/* Replies with an error without a call, and closes. */
void ml_http_conn_refuse(ml_http_conn *c, int status, const char *why);
/* Tells the observer that the current request has ended. */
void ml_http_conn_report(ml_http_conn *c, int status, bool complete);
/* Appends to the output.  If out of memory, resets the connection, so that the client sees
 * that the reply is incomplete. */
void ml_http_conn_send(ml_http_conn *c, const char *bytes, size_t n);
/* A client that has shut down its sending side may still read, or be gone.  Starts a check
 * which of the two it is. */
void ml_http_conn_probe(ml_http_conn *c);

/* Returns false if out of memory. */
bool ml_http_call_new(ml_http_conn *c);
void ml_http_call_free(ml_http_call *c);

/* "Not Found" */
const char *ml_http_reason(int status);

#endif
