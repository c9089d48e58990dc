/* http_client.h - requests to other servers, without waiting for them.
 *
 * thread: the loop's. */
#ifndef ML_NET_HTTP_CLIENT_H
#define ML_NET_HTTP_CLIENT_H

#include "base/str.h"
#include "net/loop.h"

typedef struct ml_http_client ml_http_client; /* keeps idle connections for reuse */
typedef struct ml_http_job ml_http_job;

typedef struct ml_http_fns {
    /* The status line and headers have come (headers: "Name: value\n" lines).  NULL: not
     * asked for; data too. */
    void (*head)(void *ud, int status, ml_str headers);
    void (*data)(void *ud, ml_str piece);
    /* The end: err is NULL, or says in a sentence what went wrong, naming the URL.  The job
     * is gone after this. */
    void (*done)(void *ud, const ml_err *err);
    void *ud;
} ml_http_fns;

typedef struct ml_http_request {
    const char *method, *url; /* http://host:port/path?query */
    const char *headers;      /* "Name: value\n" lines, or NULL; without Host and lengths */
    ml_str body;
    /* Deadlines; 0: none.  To connect; between two bytes; from the connection to the end of
     * the reply. */
    double connect_s, idle_s, total_s;
    size_t max_body; /* a longer reply is an error; 0: any length */
} ml_http_request;

ml_http_client *ml_http_client_new(ml_loop *l);
/* Jobs in flight end without a call.  Not from inside one of their functions. */
void ml_http_client_free(ml_http_client *c);

/* Everything is copied.  A malformed URL is an error here; all else comes to done. */
ml_status ml_http_start(ml_http_job **out, ml_http_client *c, const ml_http_request *r,
                        ml_http_fns fns, ml_err *err);
void ml_http_cancel(ml_http_job *j); /* no further calls */

#endif
