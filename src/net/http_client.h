/* http_client.h - an asynchronous HTTP/1.1 client.
 *
 * thread: the event loop's. */
#ifndef ML_NET_HTTP_CLIENT_H
#define ML_NET_HTTP_CLIENT_H

#include "base/str.h"
#include "net/loop.h"

typedef struct ml_http_client ml_http_client; /* keeps idle connections for reuse */
typedef struct ml_http_job ml_http_job;

typedef struct ml_http_fns {
    /* The status line and headers have arrived (headers: "Name: value\n" lines).  head and
     * data may be NULL. */
    void (*head)(void *ud, int status, ml_str headers);
    void (*data)(void *ud, ml_str piece);
    /* The request has ended: err is NULL, or describes the error in a sentence that has the
     * URL.  The job no longer exists. */
    void (*done)(void *ud, const ml_err *err);
    void *ud;
} ml_http_fns;

typedef struct ml_http_request {
    const char *method, *url; /* http://host:port/path?query */
    const char *headers; /* "Name: value\n" lines, or NULL; not Host or Content-Length */
    ml_str body;
    /* Timeouts; 0: none.  To connect; between two bytes; from the connection to the end of
     * the reply. */
    double connect_s, idle_s, total_s;
    size_t max_body; /* a longer reply is an error; 0: any length */
} ml_http_request;

ml_http_client *ml_http_client_new(ml_loop *l);
/* Cancels jobs in flight without a callback.  Do not call it from a job's callback. */
void ml_http_client_free(ml_http_client *c);

/* Copies the request.  Returns an error for a malformed URL; done gets all other errors. */
ml_status ml_http_start(ml_http_job **out, ml_http_client *c, const ml_http_request *r,
                        ml_http_fns fns, ml_err *err);
void ml_http_cancel(ml_http_job *j); /* no further callbacks */

#endif
