/* rules.c - nodes of grammar rules. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_priv.h"

int32_t ml_grule_new(ml_grules *g, const char *name) {
    if (g->n == g->cap) {
        int32_t cap = g->cap ? 2 * g->cap : 64;
        ml_grule *grown = ML_NEW(g->arena, ml_grule, cap);
        if (g->n)
            memcpy(grown, g->rule, (size_t)g->n * sizeof *grown);
        g->rule = grown;
        g->cap = cap;
    }
    g->rule[g->n] =
        (ml_grule){ .name = ml_str_of(ml_arena_str(g->arena, name, strlen(name))) };
    return g->n++;
}

ml_gnode *ml_gnode_new(ml_grules *g, ml_gnode_kind kind) {
    ml_gnode *n = ML_NEW(g->arena, ml_gnode, 1);
    n->kind = kind;
    g->n_node++;
    return n;
}

ml_gnode *ml_gnode_str(ml_grules *g, ml_str text) {
    ml_gnode *n = ml_gnode_new(g, text.len ? ML_GNODE_BYTES : ML_GNODE_EMPTY);
    n->bytes = (ml_str){ ml_arena_str(g->arena, text.ptr, text.len), text.len };
    return n;
}

ml_gnode *ml_gnode_text(ml_grules *g, const char *text) {
    return ml_gnode_str(g, ml_str_of(text));
}

ml_gnode *ml_gnode_ref(ml_grules *g, int32_t rule) {
    ml_gnode *n = ml_gnode_new(g, ML_GNODE_REF);
    n->rule = rule;
    return n;
}

ml_gnode *ml_gnode_repeat(ml_grules *g, ml_gnode *child, int32_t min, int32_t max) {
    ml_gnode *n = ml_gnode_new(g, ML_GNODE_REPEAT);
    n->min = min;
    n->max = max;
    return ml_gnode_add(n, child);
}

ml_gnode *ml_gnode_add(ml_gnode *parent, ml_gnode *child) {
    *(parent->last ? &parent->last->next : &parent->child) = child;
    parent->last = child;
    return parent;
}

/* --- classes ---------------------------------------------------------------- */

static int by_lo(const void *a, const void *b) {
    const ml_grange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts, and merges ranges that overlap or touch. */
static int32_t merge_ranges(ml_grange *r, int32_t n) {
    int32_t kept = 0;

    if (n > 1)
        qsort(r, (size_t)n, sizeof *r, by_lo);
    for (int32_t i = 0; i < n; i++) {
        if (kept && r[i].lo <= r[kept - 1].hi + 1) {
            if (r[i].hi > r[kept - 1].hi)
                r[kept - 1].hi = r[i].hi;
        } else {
            r[kept++] = r[i];
        }
    }
    return kept;
}

static int32_t complement(ml_grange *out, const ml_grange *r, int32_t n) {
    uint32_t next = 0;
    int32_t made = 0;

    for (int32_t i = 0; i < n; i++) {
        if (r[i].lo > next)
            out[made++] = (ml_grange){ next, r[i].lo - 1 };
        next = r[i].hi + 1;
    }
    if (next <= 0x10ffff)
        out[made++] = (ml_grange){ next, 0x10ffff };
    return made;
}

ml_gnode *ml_gnode_class(ml_grules *g, const ml_grange *range, int32_t n, bool negated) {
    ml_gnode *node = ml_gnode_new(g, ML_GNODE_CLASS);
    ml_grange *r = ML_NEW(g->arena, ml_grange, n + 1);

    if (n)
        memcpy(r, range, (size_t)n * sizeof *r);
    n = merge_ranges(r, n);
    if (negated) {
        node->range = ML_NEW(g->arena, ml_grange, n + 1);
        node->n_range = complement(node->range, r, n);
    } else {
        node->range = r;
        node->n_range = n;
    }
    return node;
}

ml_gnode *ml_gnode_bytes_of(ml_grules *g, const ml_grange *range, int32_t n) {
    ml_gnode *node = ml_gnode_class(g, range, n, false);
    node->kind = ML_GNODE_BYTE_SET;
    return node;
}
