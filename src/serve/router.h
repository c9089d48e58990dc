/* router.h - one address in front of many servers.
 *
 * Requests are handed on to workers as they are, and replies back as they come, piece by
 * piece.  Workers are asked for their health; one that fails is left out until it is well
 * again, and a request that got no byte of a reply from it goes to another.
 * docs/ROUTER.md lists its own endpoints.
 *
 * thread: the loop's. */
#ifndef ML_SERVE_ROUTER_H
#define ML_SERVE_ROUTER_H

#include "net/loop.h"
#include "serve/access.h"
#include "serve/route_policy.h"

typedef struct ml_router ml_router;

typedef struct ml_router_opts {
    const char *host;
    int port; /* 0: any free one */
    const char *const *worker_url;
    int n_worker;
    ml_route_opts route;
    ml_access_opts access;  /* who may use the router */
    const char *worker_key; /* sent to the workers of worker_url; may be NULL */
    /* health */
    double health_interval_s; /* 0: workers are not asked */
    double health_timeout_s;
    const char *health_path;
    int failure_threshold, success_threshold;
    /* requests */
    int max_retries;
    double request_timeout_s, connect_timeout_s;
    int64_t max_concurrent; /* 0: no limit */
    size_t max_body;        /* bytes */
} ml_router_opts;

/* Nothing of opts is kept but the strings it points to. */
ml_status ml_router_open(ml_router **out, ml_loop *l, const ml_router_opts *opts,
                         ml_err *err);
int ml_router_port(const ml_router *r);
/* Takes no new connections, lets requests in flight end, and stops the loop. */
void ml_router_drain(ml_router *r);
void ml_router_close(ml_router *r); /* NULL is fine */

#endif
