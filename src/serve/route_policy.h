/* route_policy.h - which worker gets the next request.
 *
 * thread: the loop's. */
#ifndef ML_SERVE_ROUTE_POLICY_H
#define ML_SERVE_ROUTE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* The order is that of the words of --policy. */
typedef enum ml_route_kind {
    ML_ROUTE_CACHE_AWARE, /* where the longest beginning of the prompt is, if loads allow */
    ML_ROUTE_ROUND_ROBIN,
    ML_ROUTE_LEAST_LOADED,       /* of equals the one with fewer requests so far */
    ML_ROUTE_CONSISTENT_HASHING, /* one worker for a routing key, as long as it lives */
} ml_route_kind;

typedef struct ml_route_opts {
    ml_route_kind kind;
    double cache_threshold; /* share of the prompt that must be there */
    int64_t balance_abs;    /* loads are uneven when the largest is above the smallest by */
    double balance_rel;     /* more than this, and by more than this factor */
    size_t tree_bytes;
} ml_route_opts;

typedef struct ml_route_worker {
    uint64_t id; /* never 0, never used again for another worker */
    ml_str url;
    bool usable;
    int64_t load;     /* requests that are with it now */
    int64_t n_routed; /* requests it got so far */
} ml_route_worker;

typedef struct ml_route_policy ml_route_policy;

ml_route_policy *ml_route_policy_new(ml_route_opts opts);
void ml_route_policy_free(ml_route_policy *p);

/* The index of the worker, or -1 when none is usable.  prompt and key may be empty. */
int ml_route_pick(ml_route_policy *p, const ml_route_worker *w, int n, ml_str prompt,
                  ml_str key);

/* Requests that went where the beginning of their prompt was; bytes of the tree. */
int64_t ml_route_hits(const ml_route_policy *p);
size_t ml_route_bytes(const ml_route_policy *p);

#endif
