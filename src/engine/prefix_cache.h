/* prefix_cache.h - allocation, sharing and eviction of KV pages.
 *
 * The structure is a hash-chained prefix tree with an intrusive LRU list.  A page is free,
 * private to one request, or a node of the tree: the keys and values of ML_PAGE (16) tokens
 * after those of its parent, found by hash of (parent, tokens) and shared by all requests
 * that begin with the same tokens.  Nodes with no user are on the LRU list until a page is
 * needed; the least recently used is evicted first.  A request references all ancestors of
 * its pages and releases the deepest page first, so children precede their parents on the
 * list and the oldest is always a leaf.
 *
 * All memory is allocated at init.
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
    int32_t token[ML_PAGE]; /* in the tree: the tokens of its keys and values */
    int32_t parent;         /* in the tree: the preceding page, or a root: negative */
    int32_t n_user;         /* reference count */
    int32_t n_child;
    int32_t same_hash;    /* next page of the hash bucket; of a free page: next free page */
    int32_t older, newer; /* LRU list: unused pages of the tree, by last use */
    bool in_tree;
} ml_cached_page;

typedef struct ml_prefix_cache {
    ml_cached_page *page;
    int32_t n, n_free, n_unused; /* unused: in the tree, n_user == 0 */
    int32_t free, oldest, newest;
    int32_t *bucket; /* [n_bucket], a power of two */
    uint32_t n_bucket;
    ml_state_slots *slots; /* notified of pages that leave the tree, or NULL */
} ml_prefix_cache;

void ml_prefix_cache_init(ml_prefix_cache *p, ml_arena *a, int32_t n);

/* Pages that alloc could return now: free ones and unused ones of the tree. */
int32_t ml_prefix_cache_available(const ml_prefix_cache *p);
/* A private page, evicting the LRU page if needed; ML_NO_PAGE: all pages are in use. */
int32_t ml_prefix_cache_alloc(ml_prefix_cache *p);
/* Add and remove a user.  A private page is freed with its last user. */
void ml_prefix_cache_ref(ml_prefix_cache *p, int32_t page);
void ml_prefix_cache_unref(ml_prefix_cache *p, int32_t page);

/* The child of `parent` (a page, or a root: ML_NO_PAGE or less) in the tree with these ML_PAGE
 * tokens, or ML_NO_PAGE. */
int32_t ml_prefix_cache_find(const ml_prefix_cache *p, int32_t parent,
                             const int32_t *token);
/* Inserts a private page into the tree, which must not contain an equal one. */
void ml_prefix_cache_insert(ml_prefix_cache *p, int32_t page, int32_t parent,
                            const int32_t *token);

/* Removes all pages from the tree: used ones become private, the others free. */
void ml_prefix_cache_clear(ml_prefix_cache *p);
/* Evicts the unused pages only. */
void ml_prefix_cache_evict_all(ml_prefix_cache *p);

#endif
