/* http_server.h - an HTTP/1.1 server; replies are whole or streamed.
 *
 * A call is one request whose body is complete.  The handler answers it at once, or keeps
 * it and answers later; each call is answered exactly once, unless its client disconnects:
 * then the server calls on_gone, after which the call must not be used.  The server
 * enforces the limits: it rejects a request that exceeds them or is malformed (400, 408,
 * 413, 417, 431, 501, 503, 505) without calling the handler.  The handler rejects methods
 * that a path does not support.
 *
 * thread: the event loop's. */
#ifndef ML_NET_HTTP_SERVER_H
#define ML_NET_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/oom.h"
#include "base/str.h"
#include "net/loop.h"
#include "net/tls.h"

typedef struct ml_http_server ml_http_server;
typedef struct ml_http_call ml_http_call;

typedef struct ml_http_limits {
    size_t max_header, max_body; /* bytes */
    int max_connections;         /* further connections get 503 and are closed */
    double idle_s;     /* timeout of a connection that neither sends nor receives */
    size_t max_unsent; /* a client with more bytes unread counts as disconnected */
    double head_s;     /* from a request's first byte to its last header; 0: no limit */
    double body_s;     /* time limit of the body, extended by one second ... */
    double min_rate;   /* ... for each min_rate bytes received; 0: no limit */
    ml_budget *budget; /* counts the bodies of all connections; NULL: no limit.  A request
                          that would exceed it gets 503 and is not read further */
} ml_http_limits;

/* The limits used by the servers of this program. */
#define ML_HTTP_HEAD_S 30.0
#define ML_HTTP_BODY_S 30.0
#define ML_HTTP_MIN_RATE 16384.0

typedef void ml_http_handler(void *ud, ml_http_call *c);

/* port 0: any free port; see ml_http_server_port.  The error for a port in use names it.
 * Where the process may not open that many files, max_connections is lowered
 * (ml_http_server_max_connections). */
ml_status ml_http_server_open(ml_http_server **out, ml_loop *l, const char *host, int port,
                              ml_http_limits limits, ml_http_handler *fn, void *ud,
                              ml_err *err);

/* The same for a socket that listens already; takes it over, also on failure. */
ml_status ml_http_server_adopt(ml_http_server **out, ml_loop *l, int listening,
                               ml_http_limits limits, ml_http_handler *fn, void *ud,
                               ml_err *err);

/* The head of a request, before its body is read. */
typedef struct ml_http_head {
    ml_str method, path; /* decoded, without the query */
    bool has_body;
    const struct ml_http_reader *reader; /* for ml_http_head_field */
} ml_http_head;
ml_str ml_http_head_field(const ml_http_head *h, const char *name); /* NULL if absent */
/* Iterates over the fields from index 0; false after the last. */
bool ml_http_head_field_at(const ml_http_head *h, int i, ml_str *name, ml_str *value);

/* A reply to the head alone; the body is not read, and the connection is closed. */
typedef struct ml_http_early {
    int status;        /* 204 has no body */
    char why[400];     /* a sentence without its period */
    char headers[900]; /* lines that end in CR LF */
    void *tag;         /* belongs to the request, whether it passes or not; may be NULL */
} ml_http_early;

/* Called for every request after its head.  Returns true if the server may read the body
 * and call the handler; otherwise the server sends *answer. */
typedef bool ml_http_gate(void *ud, const ml_http_head *h, ml_http_early *answer);
void ml_http_server_set_gate(ml_http_server *s, ml_http_gate *fn, void *ud);

/* The end of a request: its reply is written, it was refused, or its client is gone. */
typedef struct ml_http_done {
    ml_str method, path; /* empty: the request could not be read */
    int status;          /* of the reply; 0: none was begun */
    bool complete;       /* the whole reply is written */
    double seconds;      /* since its head was read; 0: it was not */
    const char *peer;    /* address of the client */
    void *tag;           /* the gate's; not used by the server after this */
} ml_http_done;

/* Called once for every request. */
typedef void ml_http_observer(void *ud, const ml_http_done *d);
void ml_http_server_set_observer(ml_http_server *s, ml_http_observer *fn, void *ud);

/* Connections that are accepted from now on use TLS; t must outlive the server. */
void ml_http_server_set_tls(ml_http_server *s, ml_tls *t);

int ml_http_server_port(const ml_http_server *s);
int ml_http_server_connections(const ml_http_server *s);
int ml_http_server_max_connections(const ml_http_server *s);
int ml_http_server_socket(const ml_http_server *s); /* that listens */
/* Accepts no more connections.  Idle ones may send one more request for grace_s, and are
 * then closed; busy ones are closed after their reply. */
void ml_http_server_stop_accepting(ml_http_server *s, double grace_s);
/* Closes all connections and calls on_gone.  Do not call it from a handler. */
void ml_http_server_close(ml_http_server *s);

/* The request.  The strings are valid as long as the call. */
ml_str ml_http_method(const ml_http_call *c);
ml_str ml_http_path(const ml_http_call *c);  /* decoded, without the query */
ml_str ml_http_query(const ml_http_call *c); /* not decoded; empty if there is none */
/* The path and query, not decoded, for forwarding. */
ml_str ml_http_target(const ml_http_call *c);
ml_str ml_http_header(const ml_http_call *c, const char *name); /* NULL if absent */
/* Iterates over the headers from index 0; false after the last. */
bool ml_http_header_at(const ml_http_call *c, int i, ml_str *name, ml_str *value);
ml_str ml_http_body(const ml_http_call *c);
/* Moves the body to the caller, who releases it and then returns its length to the budget.
 * ml_http_body is empty after this. */
void ml_http_take_body(ml_http_call *c, ml_text *out);
ml_str ml_http_peer(const ml_http_call *c); /* address of the client */
void *ml_http_tag(const ml_http_call *c);   /* the gate's; NULL: none */

/* Sets a callback for a client that disconnects before the reply is complete.  Of the
 * functions of this header, only ml_http_server_close calls it directly. */
void ml_http_on_gone(ml_http_call *c, ml_loop_fn *fn, void *ud);

/* Adds a header of the reply, before the reply begins.  A streamed reply with a
 * Content-Length is sent as it is, otherwise it is chunked. */
void ml_http_add_header(ml_http_call *c, const char *name, const char *value);

/* Sends the whole reply and frees the call.  type NULL: no Content-Type. */
void ml_http_reply(ml_http_call *c, int status, const char *type, ml_str body);

/* A streamed reply. */
void ml_http_begin(ml_http_call *c, int status, const char *type);
void ml_http_write(ml_http_call *c, ml_str piece);
void ml_http_end(ml_http_call *c); /* frees the call */
/* Resets the connection instead, so that the client sees that the reply is incomplete. */
void ml_http_abort(ml_http_call *c); /* frees the call */

#endif
