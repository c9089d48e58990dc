/* fake_worker.h - a worker behind a router that does as it is told.
 *
 * /stream and /pieces answer in six pieces, as events and as bytes; the rest is plain. */
#ifndef ML_TESTS_SUPPORT_FAKE_WORKER_H
#define ML_TESTS_SUPPORT_FAKE_WORKER_H

#include "net/http_server.h"

typedef struct ml_fake_worker {
    ml_loop *loop;
    ml_http_server *server;
    ml_http_call *held;
    ml_timer *timer;
    char url[64];
    int n_request, n_health, n_gone, n_piece;
    int status;          /* of a plain reply */
    bool ill;            /* says so when asked for its health */
    bool dies;           /* in the middle of a stream */
    bool silent;         /* never answers */
    char health_key[80]; /* Authorization of the last question for its health */
    ml_text last;        /* what it was asked: "POST /path?query|key|own|body" */
    const char *reply;   /* of a plain one */
} ml_fake_worker;

/* On this loop; port 0: any.  It can be opened again after it was closed. */
void ml_fake_worker_open(ml_fake_worker *f, ml_loop *l, int port);
void ml_fake_worker_close(ml_fake_worker *f);

#endif
