/* http_conn.h - a connection of the server and the call it carries, for the files of this
 * room.
 *
 * One call at a time: requests that a client sends ahead wait in its socket, so that replies
 * leave in order.  A connection is freed only from the event loop, never from inside a
 * function that the owner of a call may call: what such a function finds out is marked and
 * settled by an event of its own. */
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
    struct evconnlistener *listener; /* NULL: no longer accepting */
    ml_timer *pause;                 /* while the process has no file descriptor left */
    ml_http_limits limits;
    ml_http_handler *fn;
    void *ud;
    ml_http_gate *gate; /* NULL: every request is taken */
    void *gate_ud;
    int port, n_conn;
    ml_http_conn *first;
};

typedef enum ml_conn_state {
    ML_CONN_OPEN,    /* reads requests, or waits for an answer */
    ML_CONN_CLOSING, /* sends what is left */
    ML_CONN_LINGER,  /* has sent all, and reads over what still comes, so that the reply is
                        not destroyed by a reset */
} ml_conn_state;

struct ml_http_conn {
    ml_http_server *server;
    ml_http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *settle;
    struct event *clock; /* armed while a request is late, or a silent client is probed */
    ml_conn_state state;
    bool cut; /* to be freed at the next settling */
    bool eof; /* the client sends no more */
    ml_http_reader reader;
    double began_s;   /* clock at the first byte of the request; 0: it came in one piece */
    double head_at_s; /* clock when its head was complete; 0: not yet */
    size_t counted;   /* bytes of the body that the server's budget counts */
    ml_text path, body; /* of the request at hand */
    ml_str query, target;
    ml_http_call *call; /* NULL while a request is read */
    char peer[64];
};

struct ml_http_call {
    ml_http_conn *conn;
    ml_loop_fn *gone;
    void *gone_ud;
    ml_text headers; /* of the reply */
    bool keep;       /* the connection, after this reply */
    bool no_body;    /* the reply has none, whatever is written */
    bool begun, chunked, counted;
    size_t left; /* when counted: bytes to come */
};

/* fd is the connection's from now on. */
void ml_http_conn_open(ml_http_server *s, int fd, const char *peer);
/* Frees it; its call is told that the client has gone. */
void ml_http_conn_drop(ml_http_conn *c);
/* Frees it soon, from the event loop. */
void ml_http_conn_cut(ml_http_conn *c);
/* Ends it once what is left has been sent. */
void ml_http_conn_close(ml_http_conn *c);
/* The call has been answered: the next request, or the end of the connection. */
void ml_http_conn_answered(ml_http_conn *c, bool keep);
/* Answers without a call, and closes. */
void ml_http_conn_refuse(ml_http_conn *c, int status, const char *why);
/* Appends to what is sent.  Without memory the connection is reset, so that the client sees
 * that the reply is not whole. */
void ml_http_conn_send(ml_http_conn *c, const char *bytes, size_t n);
/* A client that has shut down its side may still read, or be gone: tells which, soon. */
void ml_http_conn_probe(ml_http_conn *c);

/* False without memory. */
bool ml_http_call_new(ml_http_conn *c);
void ml_http_call_free(ml_http_call *c);

/* "Not Found" */
const char *ml_http_reason(int status);

#endif
