/* route_policy.h - selects the worker for a request.
 *
 * thread: the event loop's. */
#ifndef ML_SERVE_ROUTE_POLICY_H
#define ML_SERVE_ROUTE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* In the order of the values of --policy. */
typedef enum ml_route_kind {
    ML_ROUTE_CACHE_AWARE, /* the worker of the longest prefix, if loads are balanced */
    ML_ROUTE_ROUND_ROBIN,
    ML_ROUTE_LEAST_LOADED,       /* ties: the worker with fewer requests so far */
    ML_ROUTE_CONSISTENT_HASHING, /* the same worker for a routing key while it is alive */
} ml_route_kind;

typedef struct ml_route_opts {
    ml_route_kind kind;
    double cache_threshold; /* fraction of the prompt that must match */
    int64_t balance_abs;    /* loads are unbalanced if max - min > balance_abs ... */
    double balance_rel;     /* ... and max > min * balance_rel */
    size_t tree_bytes;
} ml_route_opts;

typedef struct ml_route_worker {
    uint64_t id; /* never 0, never reused for another worker */
    ml_str url;
    bool usable;
    int64_t load;     /* requests in flight */
    int64_t n_routed; /* requests routed to it so far */
} ml_route_worker;

typedef struct ml_route_policy ml_route_policy;

ml_route_policy *ml_route_policy_new(ml_route_opts opts);
void ml_route_policy_free(ml_route_policy *p);

/* Returns the index of a worker, or -1 if none is usable.  prompt and key may be empty. */
int ml_route_pick(ml_route_policy *p, const ml_route_worker *w, int n, ml_str prompt,
                  ml_str key);

/* The number of requests routed by a prefix match; the bytes of the tree. */
int64_t ml_route_hits(const ml_route_policy *p);
size_t ml_route_bytes(const ml_route_policy *p);

#endif
