/* router_priv.h - what the files of the router share. */
#ifndef ML_SERVE_ROUTER_PRIV_H
#define ML_SERVE_ROUTER_PRIV_H

#include "net/http_client.h"
#include "net/http_server.h"
#include "serve/router.h"

/* A server that requests are handed to.  It lives in the router's list until it is removed,
 * and in memory until the last request that is with it ends. */
typedef struct ml_worker {
    struct ml_worker *next;
    ml_router *router;
    uint64_t id;
    char *url;  /* without a slash at its end */
    char *key;  /* sent to it; NULL: none */
    bool named; /* on the command line: what clients send as Authorization may go to it */
    bool alive, removed;
    int n_failure, n_success; /* in a row */
    int64_t load;             /* requests that are with it now */
    int64_t n_routed, n_failed;
    ml_http_job *probe; /* the question for its health that is under way */
    int probe_status;
} ml_worker;

typedef struct ml_relay ml_relay;
typedef struct ml_fan ml_fan;

struct ml_router {
    ml_router_opts opts;
    ml_access access;
    ml_loop *loop;
    ml_budget budget; /* of bytes of requests that workers have not answered */
    ml_http_server *server;
    ml_http_client *client;
    ml_route_policy *policy;
    ml_timer *health, *drain;
    ml_worker *first; /* in the order of their coming */
    int n_worker;
    uint64_t last_id;
    ml_relay *relays;
    ml_fan *fans;
    int n_drain_poll;
    int64_t n_active, n_request, n_retry, n_refused, n_broken;
};

/* --- router_worker.c --- */

/* Adds the worker, or finds it when it is there and leaves it as it is.  key: sent to it, or
 * NULL.  ML_EFORMAT: no URL of a server. */
ml_status ml_worker_add(ml_worker **out, ml_router *r, ml_str url, const char *key,
                        ml_err *err);
/* By URL, or by id as a number.  NULL when there is none. */
ml_worker *ml_worker_find(ml_router *r, ml_str url_or_id);
void ml_worker_remove(ml_worker *w);
int ml_workers_alive(const ml_router *r);
/* A request goes to it, and has ended. */
void ml_worker_take(ml_worker *w);
void ml_worker_drop(ml_worker *w);
/* It did, or did not, do what a healthy server does. */
void ml_worker_well(ml_worker *w);
void ml_worker_ill(ml_worker *w);
void ml_workers_probe(void *router); /* asks all of them */
void ml_workers_free(ml_router *r);

/* --- router_relay.c --- */

/* Hands the request on; the call is the relay's from now on. */
void ml_relay_start(ml_router *r, ml_http_call *c);
void ml_relays_free(ml_router *r);
/* Sends a call's request to a worker, with the client's headers.  max_body: as in
 * ml_http_request. */
ml_status ml_router_hand_on(ml_http_job **out, ml_router *r, ml_http_call *c,
                            const ml_worker *w, size_t max_body, ml_http_fns fns,
                            ml_err *err);

/* --- router_fan.c --- */

/* Asks all workers, where the path is one that concerns them all; false: it is not.  The call
 * is the fan's from then on. */
bool ml_fan_start(ml_router *r, ml_http_call *c);
void ml_fan_free_all(ml_router *r);

/* --- router_admin.c --- */

/* Answers the router's own endpoints; false when the path is none of them. */
bool ml_router_admin(ml_router *r, ml_http_call *c);
/* {"error": {...}} */
void ml_router_refuse(ml_http_call *c, int status, const char *message);
/* The body of such a reply. */
void ml_router_error(ml_text *out, int status, const char *message);

#endif
