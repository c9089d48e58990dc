/* pages.h - who uses which KV page, and which pages hold a prefix worth keeping.
 *
 * A page is free, private to one request, or in the tree.  A page of the tree holds the
 * keys and values of 16 tokens after those of its parent; requests that begin with
 * the same tokens share it.  Pages of the tree that nobody uses stay until memory is
 * wanted; the one unused for longest goes first.  A request that uses a page uses its
 * ancestors too and lets go of the deepest first, so in the order of disuse children
 * stand before their parents and the oldest is always a leaf.
 *
 * Everything is allocated at init.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_PREFIX_CACHE_H
#define ML_ENGINE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/ops.h"
#include "base/arena.h"
#include "engine/state_slots.h"

#define ML_NO_PAGE (-1)

typedef struct ml_cached_page {
    int32_t token[ML_PAGE]; /* in the tree: what its keys are of, */
    int32_t parent;         /* and the page before, or ML_NO_PAGE */
    int32_t n_user;
    int32_t n_child;
    int32_t same_hash;    /* next page of the bucket; of a free page: the next free one */
    int32_t older, newer; /* unused pages of the tree, by when they fell into disuse */
    bool in_tree;
} ml_cached_page;

typedef struct ml_prefix_cache {
    ml_cached_page *page;
    int32_t n, n_free, n_unused; /* unused: in the tree, without a user */
    int32_t free, oldest, newest;
    int32_t *bucket; /* [n_bucket], a power of two */
    uint32_t n_bucket;
    ml_state_slots *slots; /* told of pages that leave the tree; NULL: nobody is */
} ml_prefix_cache;

void ml_prefix_cache_init(ml_prefix_cache *p, ml_arena *a, int32_t n);

/* Pages that could be taken now. */
int32_t ml_prefix_cache_available(const ml_prefix_cache *p);
/* A private page, emptied of an old prefix if need be; ML_NO_PAGE: all are in use. */
int32_t ml_prefix_cache_alloc(ml_prefix_cache *p);
/* One user more, one less.  A private page without users is free. */
void ml_prefix_cache_ref(ml_prefix_cache *p, int32_t page);
void ml_prefix_cache_unref(ml_prefix_cache *p, int32_t page);

/* The page of the tree that holds these 16 tokens after parent, or ML_NO_PAGE. */
int32_t ml_prefix_cache_find(const ml_prefix_cache *p, int32_t parent,
                             const int32_t *token);
/* Puts a private page into the tree, where there must be no such page yet. */
void ml_prefix_cache_insert(ml_prefix_cache *p, int32_t page, int32_t parent,
                            const int32_t *token);

/* Takes every page out of the tree: used ones become private, the others free. */
void ml_prefix_cache_clear(ml_prefix_cache *p);
/* Frees the unused ones only. */
void ml_prefix_cache_evict_all(ml_prefix_cache *p);

#endif
