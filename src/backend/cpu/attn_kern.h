/* attn_kern.h - attention of a span: consecutive positions of one sequence with one KV
 * head, or a few positions with several KV heads.  A KV head comes with its group of
 * query heads (GQA). */
#ifndef ML_BACKEND_CPU_ATTN_KERN_H
#define ML_BACKEND_CPU_ATTN_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/ops.h"
#include "tensor/codes.h"

/* Query rows (position, head) per block, and key tiles that backward holds transposed;
 * neither changes the bits. */
#define ML_ATTN_ROWS 84
#define ML_ATTN_TILES 8

/* Most KV heads of a span. */
#define ML_ATTN_HEADS 16

/* Arguments common to all spans of a call.  q, dq are [n, Hq*d], dk [keys, Hk*d], o [n,
 * Hq*e], dv [keys, Hk*e]; d is head_dim, e is value_dim. */
typedef struct ml_attn_job {
    int32_t n_head, n_kv, head_dim, value_dim, window;
    float scale, softcap;
    const float *sink;         /* [Hq], or NULL */
    const void *kpage, *vpage; /* vpage NULL: values are the first elements of keys */
    ml_dtype page_dtype;       /* f32, bf16, or codes with a scale for each key and head */
    const float *q;
    float *o, *stat; /* written by forward (stat may be NULL), read by backward */
    const float *dout;
    float *dq, *dk, *dv; /* NULL: not computed */
    bool dq_add;         /* dk and dv are always added to */
} ml_attn_job;

typedef struct ml_attn_span {
    const int32_t *page; /* the sequence's page table (block table) */
    int64_t row;         /* batch row of the first position */
    int64_t pos;         /* the first position */
    int64_t n;           /* number of positions */
    int64_t key_row;     /* row of the sequence's first key in dk and dv */
    int64_t own;         /* keys before this one are those of its prefix in `rows` */
    const ml_rows *rows;
    int32_t prefix;       /* -1: it has none, and own is 0 */
    int64_t tile0, tile1; /* backward: range of key tiles to process */
    int32_t kv, heads;    /* first KV head; number of them, at most ml_attn_heads() */
} ml_attn_span;

typedef struct ml_attn_kern {
    /* n is at most ml_attn_positions(). */
    void (*forward)(const ml_attn_job *job, const ml_attn_span *span, float *scratch);
    /* One KV head; any n.  All keys of the sequence are in its KV pages. */
    void (*backward)(const ml_attn_job *job, const ml_attn_span *span, float *scratch);
    /* The gradient of a head's sink, of rows begin .. end - 1. */
    float (*sink_grad)(const ml_attn_job *job, int32_t head, int64_t begin, int64_t end);
} ml_attn_kern;

/* Bytes of a head in a page of keys, or of values of a padded size. */
static inline int64_t ml_attn_head_bytes(ml_dtype pages, int64_t size) {
    return ML_PAGE * (size * (int64_t)ml_dtype_bytes(pages) +
                      (ml_dtype_is_kv_codes(pages) ? ML_KV_SCALE_BYTES : 0));
}

static inline int64_t ml_attn_width(int64_t head_dim) { /* padded to lanes */
    return (head_dim + ML_LANES - 1) / ML_LANES * ML_LANES;
}

/* Positions per block for a group of g heads, at most ML_ATTN_ROWS rows. */
static inline int64_t ml_attn_positions(int64_t g) {
    return g < ML_ATTN_ROWS ? ML_ATTN_ROWS / g : 1;
}

/* Rows of a block, rounded up to whole vectors. */
static inline int64_t ml_attn_padded(int64_t rows) {
    return (rows + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static inline int64_t ml_attn_rows(int64_t g) {
    return ml_attn_padded(ml_attn_positions(g) * g);
}

/* Whether a block of so many (padded) rows is memory-bound.  Its products then read the
 * KV pages in place, which is not possible for bf16 keys without pairs and for codes. */
static inline bool ml_attn_has_few_rows(const ml_attn_job *job, int64_t rows) {
    return rows <= ML_LANES && job->vpage &&
           (job->page_dtype == ML_F32 ||
            (job->page_dtype == ML_BF16 && job->head_dim % 2 == 0));
}

/* KV heads per span of n positions: as many as fit the scratch of one head with
 * ml_attn_positions(). */
static inline int64_t ml_attn_heads(const ml_attn_job *job, int64_t n) {
    int64_t g = job->n_head / job->n_kv, rows = ml_attn_padded(n * g);
    int64_t most = ml_attn_rows(g) / rows;
    if (!ml_attn_has_few_rows(job, rows))
        return 1;
    return most < ML_ATTN_HEADS ? most : ML_ATTN_HEADS;
}

/* Scratch size in floats, a multiple of 16. */
static inline int64_t ml_attn_floats(int64_t g, int64_t head_dim, int64_t value_dim,
                                     ml_dtype pages, bool backward) {
    int64_t kw = ml_attn_width(head_dim), vw = ml_attn_width(value_dim);
    int64_t per_row = kw + vw + ML_KTILE + 4, tiles = ML_KTILE * vw;
    if (backward) {
        per_row += kw + ML_KTILE;
        tiles = ML_ATTN_TILES * ML_KTILE * (kw + vw);
    }
    if (pages != ML_F32)
        tiles += ML_KTILE * kw;
    return ml_attn_rows(g) * per_row + tiles;
}

#endif
