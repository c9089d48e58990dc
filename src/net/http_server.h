/* http_server.h - HTTP/1.1 requests in, replies out, whole or in pieces.
 *
 * A call is one request whose body has fully come.  The handler answers at once or keeps
 * the call and answers later; each call is answered exactly once, or its client has
 * gone, which on_gone says and after which the call must not be touched.  Limits are
 * kept here: a request beyond them, or one that is broken, is refused (400, 408, 413, 417,
 * 431, 501, 503, 505) and the handler never sees it; a method that a path does not take is the
 * handler's to refuse.
 *
 * thread: the loop's. */
#ifndef ML_NET_HTTP_SERVER_H
#define ML_NET_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/oom.h"
#include "base/str.h"
#include "net/loop.h"

typedef struct ml_http_server ml_http_server;
typedef struct ml_http_call ml_http_call;

typedef struct ml_http_limits {
    size_t max_header, max_body; /* bytes */
    int max_connections;         /* further ones get 503 and are closed */
    double idle_s;               /* a connection that neither sends nor receives */
    size_t max_unsent;           /* bytes a slow reader may leave; then it counts as gone */
    double head_s;     /* from a request's first byte to its last header; 0: any time */
    double body_s;     /* the body may take so long, and a second more ... */
    double min_rate;   /* ... for each min_rate bytes received; 0: any time */
    ml_budget *budget; /* counts the bodies of all connections; NULL: no limit.  A request
                          that would pass it gets 503 and is not read further */
} ml_http_limits;

/* What servers of this program allow a client. */
#define ML_HTTP_HEAD_S 30.0
#define ML_HTTP_BODY_S 30.0
#define ML_HTTP_MIN_RATE 16384.0

typedef void ml_http_handler(void *ud, ml_http_call *c);

/* port 0: any free one; see ml_http_server_port.  A taken port is a sentence that names it. */
ml_status ml_http_server_open(ml_http_server **out, ml_loop *l, const char *host, int port,
                              ml_http_limits limits, ml_http_handler *fn, void *ud,
                              ml_err *err);

/* What is known of a request before its body is read. */
typedef struct ml_http_head {
    ml_str method, path; /* decoded, without the query */
    bool has_body;
    const struct ml_http_reader *reader; /* for ml_http_head_field */
} ml_http_head;
ml_str ml_http_head_field(const ml_http_head *h, const char *name); /* NULL when absent */
/* The fields one by one, from 0; false after the last. */
bool ml_http_head_field_at(const ml_http_head *h, int i, ml_str *name, ml_str *value);

/* An answer to the head alone; the body is not read, and the connection ends. */
typedef struct ml_http_early {
    int status;        /* 204 has no body */
    char why[400];     /* a sentence without its period */
    char headers[900]; /* lines that end in CR LF */
} ml_http_early;

/* Asked for every request, after its head: true when the body may be read and the handler
 * called; otherwise *answer is sent. */
typedef bool ml_http_gate(void *ud, const ml_http_head *h, ml_http_early *answer);
void ml_http_server_set_gate(ml_http_server *s, ml_http_gate *fn, void *ud);

int ml_http_server_port(const ml_http_server *s);
int ml_http_server_connections(const ml_http_server *s);
/* New connections are refused, idle ones closed, busy ones after their reply. */
void ml_http_server_stop_accepting(ml_http_server *s);
/* Connections are cut; on_gone is called.  Not from inside a handler. */
void ml_http_server_close(ml_http_server *s);

/* The request.  Views live as long as the call. */
ml_str ml_http_method(const ml_http_call *c);
ml_str ml_http_path(const ml_http_call *c);  /* decoded, without the query */
ml_str ml_http_query(const ml_http_call *c); /* as it came; empty when there is none */
/* The path and query as they came, for handing on. */
ml_str ml_http_target(const ml_http_call *c);
ml_str ml_http_header(const ml_http_call *c, const char *name); /* NULL when absent */
/* The headers one by one, from 0; false after the last. */
bool ml_http_header_at(const ml_http_call *c, int i, ml_str *name, ml_str *value);
ml_str ml_http_body(const ml_http_call *c);
/* The body becomes the caller's, who releases it and then gives its length back to the
 * budget.  ml_http_body is empty after this. */
void ml_http_take_body(ml_http_call *c, ml_text *out);
ml_str ml_http_peer(const ml_http_call *c); /* address of the client */

/* Called when the client vanishes before the reply is complete; never from inside another
 * function of this header but ml_http_server_close. */
void ml_http_on_gone(ml_http_call *c, ml_loop_fn *fn, void *ud);

/* A header of the reply; before it begins.  With a Content-Length a reply in pieces is sent
 * as it is, otherwise in chunks. */
void ml_http_add_header(ml_http_call *c, const char *name, const char *value);

/* The whole reply; the call is gone after this.  type NULL: no Content-Type. */
void ml_http_reply(ml_http_call *c, int status, const char *type, ml_str body);

/* A reply in pieces. */
void ml_http_begin(ml_http_call *c, int status, const char *type);
void ml_http_write(ml_http_call *c, ml_str piece);
void ml_http_end(ml_http_call *c); /* the call is gone after this */
/* Cuts the connection instead, so that the client sees that the reply is not whole. */
void ml_http_abort(ml_http_call *c); /* the call is gone after this */

#endif
