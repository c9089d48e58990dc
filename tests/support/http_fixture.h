/* http_fixture.h - an HTTP server on a thread of its own, each of whose paths tests a case.
 *
 *   /echo        the request's body             /stream      five pieces, chunked
 *   /later       from another thread            /counted     pieces, with Content-Length
 *   /hold        never, by itself               /short       less than Content-Length
 *   /hold-begun  the same, after a piece        /abort       half an answer
 *   /flood       more than any client reads     /empty       without a body
 *
 * Other paths answer with the request: "method|path|query|user agent|headers|peer". */
#ifndef ML_TESTS_SUPPORT_HTTP_FIXTURE_H
#define ML_TESTS_SUPPORT_HTTP_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/http_server.h"

typedef struct ml_http_fixture {
    ml_loop *loop;
    ml_http_server *server;
    pthread_t thread;
    int port;
    atomic_int n_call, n_gone;
    ml_http_call *held; /* of /hold; used by the server's thread only */
} ml_http_fixture;

extern const ml_http_limits ml_http_fixture_limits;

/* Answers with "piece 0," to "piece 4,", one by one. */
void ml_http_answer_pieces(ml_http_call *c);

/* Failures end the test. */
ml_http_fixture *ml_http_fixture_open(ml_http_limits limits);
void ml_http_fixture_close(ml_http_fixture *s);

#endif
