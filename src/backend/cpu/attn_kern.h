/* attn_kern.h - attention of a span: consecutive positions of one sequence under one KV head,
 * or few positions under several, each with the group of query heads that shares it. */
#ifndef ML_BACKEND_CPU_ATTN_KERN_H
#define ML_BACKEND_CPU_ATTN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/ops.h"

/* Query rows (position, head) held at once, and key tiles that backward holds transposed;
 * bits depend on neither. */
#define ML_ATTN_ROWS 84
#define ML_ATTN_TILES 8

/* KV heads of a span at most. */
#define ML_ATTN_HEADS 16

/* What all spans of a call share.  q, dq are [n, Hq*d], dk [n, Hk*d], o [n, Hq*e],
 * dv [n, Hk*e]: d of head_dim, e of value_dim. */
typedef struct ml_attn_job {
    int32_t n_head, n_kv, head_dim, value_dim, window;
    float scale, softcap;
    const float *sink;         /* [Hq], or NULL */
    const void *kpage, *vpage; /* vpage NULL: values are the first elements of keys */
    bool bf16;                 /* pages hold bf16, not f32 */
    const float *q;
    float *o, *stat; /* written by forward (stat may be NULL), read by backward */
    const float *dout;
    float *dq, *dk, *dv; /* NULL: not wanted */
    bool dq_add;         /* dk and dv are always added to */
} ml_attn_job;

typedef struct ml_attn_span {
    const int32_t *page;  /* the sequence's page table */
    int64_t row;          /* row in the batch of ... */
    int64_t pos;          /* ... the first position */
    int64_t n;            /* positions */
    int64_t tile0, tile1; /* backward: key tiles whose share is computed */
    int32_t kv, heads;    /* the first KV head, and how many: ml_attn_heads() at most */
} ml_attn_span;

typedef struct ml_attn_kern {
    /* n is at most ml_attn_positions(). */
    void (*forward)(const ml_attn_job *job, const ml_attn_span *span, float *scratch);
    /* One KV head; n is any; the sequence's first row has position 0, all its keys are in its pages. */
    void (*backward)(const ml_attn_job *job, const ml_attn_span *span, float *scratch);
    /* Adds to the gradient of a head's sink, over rows 0 .. n. */
    void (*sink_grad)(const ml_attn_job *job, float *dsink, int32_t head, int64_t n);
} ml_attn_kern;

static inline int64_t ml_attn_width(int64_t head_dim) { /* of a head, padded to lanes */
    return (head_dim + ML_LANES - 1) / ML_LANES * ML_LANES;
}

/* Positions held at once by a group of g heads: as many as ML_ATTN_ROWS allows. */
static inline int64_t ml_attn_positions(int64_t g) {
    return g < ML_ATTN_ROWS ? ML_ATTN_ROWS / g : 1;
}

/* Rows that a block has room for: whole vectors of them. */
static inline int64_t ml_attn_padded(int64_t rows) {
    return (rows + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static inline int64_t ml_attn_rows(int64_t g) {
    return ml_attn_padded(ml_attn_positions(g) * g);
}

/* Whether a block of so many rows (padded) waits for memory more than it computes; its
 * products then read pages as they lie, which keys of bf16 without pairs do not allow. */
static inline bool ml_attn_few(const ml_attn_job *job, int64_t rows) {
    return rows <= ML_LANES && job->vpage && !(job->bf16 && job->head_dim % 2);
}

/* KV heads that a span of n positions may take at once: what fits where one head of
 * ml_attn_positions() does. */
static inline int64_t ml_attn_heads(const ml_attn_job *job, int64_t n) {
    int64_t g = job->n_head / job->n_kv, rows = ml_attn_padded(n * g);
    int64_t most = ml_attn_rows(g) / rows;
    if (!ml_attn_few(job, rows))
        return 1;
    return most < ML_ATTN_HEADS ? most : ML_ATTN_HEADS;
}

/* Floats of scratch, a multiple of 16. */
static inline int64_t ml_attn_floats(int64_t g, int64_t head_dim, int64_t value_dim,
                                     bool bf16, bool backward) {
    int64_t kw = ml_attn_width(head_dim), vw = ml_attn_width(value_dim);
    int64_t per_row = kw + vw + ML_KTILE + 4, tiles = ML_KTILE * vw;
    if (backward) {
        per_row += kw + ML_KTILE;
        tiles = ML_ATTN_TILES * ML_KTILE * (kw + vw);
    }
    if (bf16)
        tiles += ML_KTILE * kw;
    return ml_attn_rows(g) * per_row + tiles;
}

#endif
