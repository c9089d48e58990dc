#include "serve/route_policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "serve/route_tree.h"

struct ml_route_policy {
    ml_route_opts opts;
    ml_route_tree *tree;
    int64_t n_pick, n_hit;
};

ml_route_policy *ml_route_policy_new(ml_route_opts opts) {
    ml_route_policy *p = calloc(1, sizeof *p);

    if (!p) {
        fprintf(stderr, "miles: out of memory for the router's policy\n");
        exit(1);
    }
    p->opts = opts;
    p->tree = ml_route_tree_new(opts.tree_bytes);
    return p;
}

void ml_route_policy_free(ml_route_policy *p) {
    if (!p)
        return;
    ml_route_tree_free(p->tree);
    free(p);
}

int64_t ml_route_hits(const ml_route_policy *p) {
    return p->n_hit;
}

size_t ml_route_bytes(const ml_route_policy *p) {
    return ml_route_tree_bytes(p->tree);
}

static bool less_busy(const ml_route_worker *a, const ml_route_worker *b) {
    return a->load != b->load ? a->load < b->load : a->n_routed < b->n_routed;
}

static int least_loaded(const ml_route_worker *w, int n) {
    int best = -1;

    for (int i = 0; i < n; i++)
        if (w[i].usable && (best < 0 || less_busy(&w[i], &w[best])))
            best = i;
    return best;
}

static int round_robin(ml_route_policy *p, const ml_route_worker *w, int n) {
    for (int k = 0; k < n; k++) {
        int i = (int)(p->n_pick++ % n);
        if (w[i].usable)
            return i;
    }
    return -1;
}

static bool uneven(const ml_route_policy *p, const ml_route_worker *w, int n) {
    int64_t least = INT64_MAX, most = 0;

    for (int i = 0; i < n; i++)
        if (w[i].usable) {
            least = w[i].load < least ? w[i].load : least;
            most = w[i].load > most ? w[i].load : most;
        }
    return most - least > p->opts.balance_abs &&
           (double)most > p->opts.balance_rel * (double)least;
}

static int holder(const ml_route_policy *p, const ml_route_worker *w, int n,
                  ml_str prompt) {
    uint64_t id;
    size_t found = ml_route_tree_find(p->tree, prompt, &id);

    if ((double)found <= p->opts.cache_threshold * (double)prompt.len)
        return -1;
    for (int i = 0; i < n; i++)
        if (w[i].id == id && w[i].usable)
            return i;
    return -1;
}

static int cache_aware(ml_route_policy *p, const ml_route_worker *w, int n, ml_str prompt) {
    int i = prompt.len && !uneven(p, w, n) ? holder(p, w, n, prompt) : -1;

    if (i >= 0)
        p->n_hit++;
    else
        i = least_loaded(w, n);
    if (i >= 0)
        ml_route_tree_add(p->tree, prompt, w[i].id);
    return i;
}

/* FNV-1a, with a final mix because by_key compares hashes by their high bits. */
static uint64_t hash(ml_str a, ml_str b) {
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < a.len; i++)
        h = (h ^ (unsigned char)a.ptr[i]) * 0x100000001b3u;
    h *= 0x100000001b3u;
    for (size_t i = 0; i < b.len; i++)
        h = (h ^ (unsigned char)b.ptr[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Rendezvous (highest random weight) hashing: the worker with the largest hash of worker
 * and key gets the request.  When a worker leaves, only its own keys move. */
static int by_key(const ml_route_worker *w, int n, ml_str key) {
    uint64_t most = 0;
    int best = -1;

    for (int i = 0; i < n; i++) {
        uint64_t h = hash(w[i].url, key);
        if (w[i].usable && (best < 0 || h > most)) {
            most = h;
            best = i;
        }
    }
    return best;
}

int ml_route_pick(ml_route_policy *p, const ml_route_worker *w, int n, ml_str prompt,
                  ml_str key) {
    switch (p->opts.kind) {
    case ML_ROUTE_CACHE_AWARE: return cache_aware(p, w, n, prompt);
    case ML_ROUTE_ROUND_ROBIN: return round_robin(p, w, n);
    case ML_ROUTE_LEAST_LOADED: return least_loaded(w, n);
    case ML_ROUTE_CONSISTENT_HASHING:
        return key.len ? by_key(w, n, key) : least_loaded(w, n);
    }
    return -1;
}
