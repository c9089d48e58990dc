/* router_priv.h - declarations shared by the files of the router. */
#ifndef ML_SERVE_ROUTER_PRIV_H
#define ML_SERVE_ROUTER_PRIV_H

#include "net/handover.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "serve/router.h"

/* A server that the router forwards requests to.  It is in the router's list until it is
 * removed, and is freed when its last request in flight has ended. */
typedef struct ml_worker {
    struct ml_worker *next;
    ml_router *router;
    uint64_t id;
    char *url;  /* without a trailing slash */
    char *key;  /* API key sent to the worker; NULL: none */
    bool named; /* given on the command line: it may get the clients' Authorization */
    bool alive, removed;
    int n_failure, n_success; /* consecutive */
    int64_t load;             /* requests in flight */
    int64_t n_routed, n_failed;
    ml_http_job *probe; /* the pending health check */
    int probe_status;
} ml_worker;

typedef struct ml_relay ml_relay;
typedef struct ml_fan ml_fan;

struct ml_router {
    ml_router_opts opts;
    ml_access access;
    ml_loop *loop;
    ml_budget budget; /* bytes of requests that workers have not answered */
    ml_http_server *server;
    ml_http_client *client;
    ml_route_policy *policy;
    ml_timer *health, *drain;
    ml_worker *first; /* in the order of adding */
    int n_worker;
    uint64_t last_id;
    ml_relay *relays;
    ml_fan *fans;
    int n_drain_poll, max_drain_polls;
    ml_handover *handover;
    int64_t n_active, n_request, n_retry, n_refused, n_broken;
};

/* --- router_worker.c --- */

/* Adds a worker; one with the same URL is returned unchanged.  key: the API key sent to it,
 * or NULL.  ML_EFORMAT: not a server's URL. */
ml_status ml_worker_add(ml_worker **out, ml_router *r, ml_str url, const char *key,
                        ml_err *err);
/* The URL without a final slash, if it is a server's. */
ml_status ml_worker_url(ml_text *out, ml_str url, ml_err *err);
/* Finds a worker by URL, or by id as a number.  NULL if there is none. */
ml_worker *ml_worker_find(ml_router *r, ml_str url_or_id);
void ml_worker_remove(ml_worker *w);
int ml_workers_alive(const ml_router *r);
/* A request to it starts (take) and ends (drop). */
void ml_worker_take(ml_worker *w);
void ml_worker_drop(ml_worker *w);
/* Counts a success or a failure towards its health. */
void ml_worker_well(ml_worker *w);
void ml_worker_ill(ml_worker *w);
void ml_workers_probe(void *router); /* checks the health of all workers */
void ml_workers_free(ml_router *r);

/* --- router_relay.c --- */

/* Forwards the request; the relay owns the call from now on. */
void ml_relay_start(ml_router *r, ml_http_call *c);
void ml_relays_free(ml_router *r);
/* Sends a call's request to a worker, with the client's headers.  max_body: as in
 * ml_http_request. */
ml_status ml_router_hand_on(ml_http_job **out, ml_router *r, ml_http_call *c,
                            const ml_worker *w, size_t max_body, ml_http_fns fns,
                            ml_err *err);

/* --- router_fan.c --- */

/* Sends the request to all workers, if its path is one that concerns all; otherwise returns
 * false.  The fan owns the call from then on. */
bool ml_fan_start(ml_router *r, ml_http_call *c);
void ml_fan_free_all(ml_router *r);

/* --- router_admin.c --- */

/* Answers the router's own endpoints; returns false for any other path. */
bool ml_router_admin(ml_router *r, ml_http_call *c);
/* {"error": {...}} */
void ml_router_refuse(ml_http_call *c, int status, const char *message);
/* The body of such a reply. */
void ml_router_error(ml_text *out, int status, const char *message);

#endif
