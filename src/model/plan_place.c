/* plan_place.c - where the values of a plan are in memory, given when each is needed. */
#include <stdlib.h>

#include "model/plan_priv.h"

static int by_size(const void *a, const void *b, void *stores) {
    const ml_plan_store *s = stores, *x = &s[*(const int32_t *)a],
                        *y = &s[*(const int32_t *)b];
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

static int by_offset(const void *a, const void *b, void *stores) {
    const ml_plan_store *s = stores, *x = &s[*(const int32_t *)a],
                        *y = &s[*(const int32_t *)b];
    if (x->offset != y->offset)
        return x->offset > y->offset ? 1 : -1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Greedy by size: largest first, each at the lowest offset that does not overlap a store
 * with an intersecting lifetime. */
static void place_stores(ml_plan *p) {
    int32_t *order = ML_NEW(&p->arena, int32_t, p->n_store);
    int32_t *near = ML_NEW(&p->arena, int32_t, p->n_store);

    p->shared_bytes = p->set_bytes = 0;
    for (int32_t i = 0; i < p->n_store; i++) {
        p->store[i].offset = 0;
        order[i] = i;
    }
    qsort_r(order, (size_t)p->n_store, sizeof *order, by_size, p->store);
    for (int32_t i = 0; i < p->n_store; i++) {
        ml_plan_store *s = &p->store[order[i]];
        size_t *end;
        int32_t n = 0;
        for (int32_t j = 0; j < i; j++) {
            const ml_plan_store *o = &p->store[order[j]];
            if (o->shared == s->shared && o->first <= s->last && s->first <= o->last)
                near[n++] = order[j];
        }
        qsort_r(near, (size_t)n, sizeof *near, by_offset, p->store);
        for (int32_t j = 0; j < n; j++) {
            const ml_plan_store *o = &p->store[near[j]];
            if (s->offset + s->bytes <= o->offset)
                break;
            if (o->offset + o->bytes > s->offset)
                s->offset = o->offset + o->bytes;
        }
        end = s->shared ? &p->shared_bytes : &p->set_bytes;
        *end = s->offset + s->bytes > *end ? s->offset + s->bytes : *end;
    }
}

static void keep_port(ml_plan *p, int32_t value) {
    int32_t grad = p->grad_store[value];

    p->store[p->value_store[ML_FIRST_COPY][value]].shared = false;
    if (grad != ML_NONE)
        p->store[grad].shared = false;
}

/* Stores that no run leaves anything in for another one of its set: those that live in
 * forward alone, or in backward alone.  Ports are exchanged between runs. */
static void share_stores(ml_plan *p) {
    for (int32_t i = 0; i < p->n_store; i++) {
        ml_plan_store *s = &p->store[i];
        s->shared = s->last < p->spec->n_node || s->first >= p->spec->n_node;
    }
    for (int32_t i = 0; i < p->range.n_in; i++)
        keep_port(p, p->range.in[i].value);
    for (int32_t i = 0; i < p->range.n_out; i++)
        keep_port(p, p->range.out[i].value);
}

/* Several sets share what they need not keep, unless it fits between what they keep. */
void ml_plan_place(ml_plan *p) {
    size_t n = (size_t)p->opts.n_set, apart;

    place_stores(p);
    if (n == 1)
        return;
    apart = n * p->set_bytes;
    share_stores(p);
    place_stores(p);
    if (p->shared_bytes + n * p->set_bytes <= apart)
        return;
    for (int32_t i = 0; i < p->n_store; i++)
        p->store[i].shared = false;
    place_stores(p);
}
