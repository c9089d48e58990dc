/* fake_worker.h - a scripted worker behind a router.
 *
 * /stream and /pieces answer in six pieces, as events and as bytes; other paths send one
 * plain reply. */
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
    bool ill;            /* fails its health checks */
    bool dies;           /* in the middle of a stream */
    bool silent;         /* never answers */
    char health_key[80]; /* Authorization of the last health check */
    ml_text last;        /* the last request: "POST /path?query|key|own|body" */
    const char *reply;   /* body of a plain reply */
} ml_fake_worker;

/* Serves on this loop; port 0: any.  It can be reopened after it was closed. */
void ml_fake_worker_open(ml_fake_worker *f, ml_loop *l, int port);
void ml_fake_worker_close(ml_fake_worker *f);

#endif
