/* router.h - an HTTP router (load balancer) in front of many servers.
 *
 * The router forwards requests to workers unchanged, and streams replies back as they
 * arrive.  It polls the health of the workers; a worker that fails gets no requests until
 * it is healthy again, and a request that got no byte of a reply from it is retried on
 * another worker.  docs/ROUTER.md lists the router's own endpoints.
 *
 * thread: the event loop's. */
#ifndef ML_SERVE_ROUTER_H
#define ML_SERVE_ROUTER_H

#include "net/loop.h"
#include "serve/access.h"
#include "serve/route_policy.h"

typedef struct ml_router ml_router;

typedef struct ml_router_opts {
    const char *host;
    int port; /* 0: any free port */
    const char *const *worker_url;
    int n_worker;
    ml_route_opts route;
    ml_access_opts access;  /* keys, hosts and origins that are accepted */
    const char *worker_key; /* sent to the workers of worker_url; may be NULL */
    /* health */
    double health_interval_s; /* 0: no health checks */
    double health_timeout_s;
    const char *health_path;
    int failure_threshold, success_threshold;
    /* requests */
    int max_retries;
    double request_timeout_s, connect_timeout_s;
    int64_t max_concurrent; /* 0: no limit */
    size_t max_body;        /* bytes */
    const char *handover;   /* path for ml_handover; NULL: none */
    /* An owner that decides about workers: told of /add_worker and /remove_worker, it adds them
     * with ml_router_put when they are ready, or fails.  NULL: they are added at once. */
    void *owner;
    ml_status (*added)(void *owner, const char *url, const char *key, /* key may be NULL */
                       ml_err *err);
    void (*removed)(void *owner, const char *url);
} ml_router_opts;

/* Copies *opts; the strings it points to must outlive the router. */
ml_status ml_router_open(ml_router **out, ml_loop *l, const ml_router_opts *opts,
                         ml_err *err);
int ml_router_port(const ml_router *r);
/* Adds a worker, or removes it; no effect if it is there, or is not.  On the loop's thread. */
void ml_router_put(ml_router *r, const char *url, const char *key);
void ml_router_take(ml_router *r, const char *url);
/* Accepts no new connections, lets requests in flight finish, then stops the loop. */
void ml_router_drain(ml_router *r);
void ml_router_close(ml_router *r); /* NULL is allowed */

#endif
