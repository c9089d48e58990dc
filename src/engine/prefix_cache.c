#include "engine/prefix_cache.h"

#include <string.h>

#include "base/bug.h"

void ml_prefix_cache_init(ml_prefix_cache *p, ml_arena *a, int32_t n) {
    *p = (ml_prefix_cache){ .page = ML_NEW(a, ml_cached_page, n),
                            .n = n,
                            .n_free = n,
                            .free = n ? 0 : ML_NO_PAGE,
                            .oldest = ML_NO_PAGE,
                            .newest = ML_NO_PAGE,
                            .n_bucket = 16 };
    for (int32_t i = 0; i < n; i++)
        p->page[i].same_hash = i + 1 < n ? i + 1 : ML_NO_PAGE;
    while (p->n_bucket < 2 * (uint32_t)n)
        p->n_bucket *= 2;
    p->bucket = ML_NEW(a, int32_t, p->n_bucket);
    for (uint32_t i = 0; i < p->n_bucket; i++)
        p->bucket[i] = ML_NO_PAGE;
}

int32_t ml_prefix_cache_available(const ml_prefix_cache *p) {
    return p->n_free + p->n_unused;
}

/* --- LRU list ----------------------------------------------------------------- */

static void become_unused(ml_prefix_cache *p, int32_t i) {
    p->page[i].older = p->newest;
    p->page[i].newer = ML_NO_PAGE;
    *(p->newest == ML_NO_PAGE ? &p->oldest : &p->page[p->newest].newer) = i;
    p->newest = i;
    p->n_unused++;
}

static void become_used(ml_prefix_cache *p, int32_t i) {
    const ml_cached_page *g = &p->page[i];
    *(g->older == ML_NO_PAGE ? &p->oldest : &p->page[g->older].newer) = g->newer;
    *(g->newer == ML_NO_PAGE ? &p->newest : &p->page[g->newer].older) = g->older;
    p->n_unused--;
}

/* --- prefix tree -------------------------------------------------------------- */

static int32_t *bucket_of(const ml_prefix_cache *p, int32_t parent, const int32_t *token) {
    uint64_t h = (uint64_t)(uint32_t)parent * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < ML_PAGE; i++)
        h = (h ^ (uint32_t)token[i]) * 0xff51afd7ed558ccdu;
    return &p->bucket[(h ^ h >> 32) & (p->n_bucket - 1)];
}

int32_t ml_prefix_cache_find(const ml_prefix_cache *p, int32_t parent,
                             const int32_t *token) {
    int32_t i = *bucket_of(p, parent, token);
    while (i != ML_NO_PAGE &&
           (p->page[i].parent != parent ||
            memcmp(p->page[i].token, token, sizeof p->page[i].token) != 0))
        i = p->page[i].same_hash;
    return i;
}

void ml_prefix_cache_insert(ml_prefix_cache *p, int32_t page, int32_t parent,
                            const int32_t *token) {
    ml_cached_page *g = &p->page[page];
    int32_t *bucket = bucket_of(p, parent, token);

    ML_BUG_IF(g->in_tree || g->n_user != 1);
    g->in_tree = true;
    g->parent = parent;
    g->n_child = 0;
    memcpy(g->token, token, sizeof g->token);
    g->same_hash = *bucket;
    *bucket = page;
    if (parent >= 0)
        p->page[parent].n_child++;
}

static void leave_tree(ml_prefix_cache *p, int32_t page) {
    ml_cached_page *g = &p->page[page];
    int32_t *at = bucket_of(p, g->parent, g->token);

    while (*at != page)
        at = &p->page[*at].same_hash;
    *at = g->same_hash;
    if (g->parent >= 0)
        p->page[g->parent].n_child--;
    if (p->slots)
        ml_state_slots_leave(p->slots, page);
    g->in_tree = false;
}

/* --- reference counts --------------------------------------------------------- */

static void become_free(ml_prefix_cache *p, int32_t page) {
    p->page[page].same_hash = p->free;
    p->free = page;
    p->n_free++;
}

static void evict_oldest(ml_prefix_cache *p) {
    int32_t i = p->oldest;
    ML_BUG_IF(p->page[i].n_child != 0 || p->page[i].n_user != 0);
    become_used(p, i);
    leave_tree(p, i);
    become_free(p, i);
}

int32_t ml_prefix_cache_alloc(ml_prefix_cache *p) {
    int32_t i;
    if (!p->n_free && !p->n_unused)
        return ML_NO_PAGE;
    if (!p->n_free)
        evict_oldest(p);
    i = p->free;
    p->free = p->page[i].same_hash;
    p->n_free--;
    p->page[i].n_user = 1;
    return i;
}

void ml_prefix_cache_ref(ml_prefix_cache *p, int32_t page) {
    ml_cached_page *g = &p->page[page];
    ML_BUG_IF(!g->in_tree);
    if (g->n_user++ == 0)
        become_used(p, page);
}

void ml_prefix_cache_unref(ml_prefix_cache *p, int32_t page) {
    ml_cached_page *g = &p->page[page];
    ML_BUG_IF(g->n_user < 1);
    if (--g->n_user > 0)
        return;
    if (g->in_tree)
        become_unused(p, page);
    else
        become_free(p, page);
}

void ml_prefix_cache_evict_all(ml_prefix_cache *p) {
    while (p->n_unused)
        evict_oldest(p);
}

void ml_prefix_cache_clear(ml_prefix_cache *p) {
    ml_prefix_cache_evict_all(p);
    for (int32_t i = 0; i < p->n; i++)
        if (p->page[i].in_tree)
            leave_tree(p, i);
}
