#include "comm/reduce.h"

#include "base/bug.h"

#define BLOCK                                                                              \
    512 /* elements at a time: the depth of the tree is small, its rows are in cache */

typedef union block {
    float f[BLOCK];
    int32_t i[BLOCK];
} block;

typedef struct inputs {
    const void *const *in;
    int64_t at; /* first element of the block */
    int32_t n;
    ml_dtype dtype;
    ml_reduce_op op;
} inputs;

static void load(block *b, const inputs *x, int32_t rank) {
    const void *p = x->in[rank];

    switch (x->dtype) {
    case ML_F32: memcpy(b->f, (const float *)p + x->at, (size_t)x->n * 4); return;
    case ML_I32: memcpy(b->i, (const int32_t *)p + x->at, (size_t)x->n * 4); return;
    case ML_BF16:
        for (int32_t k = 0; k < x->n; k++)
            b->f[k] = ml_bf16_to_f32(((const uint16_t *)p)[x->at + k]);
        return;
    case ML_F16:
        for (int32_t k = 0; k < x->n; k++)
            b->f[k] = ml_f16_to_f32(((const uint16_t *)p)[x->at + k]);
        return;
    default: ML_BUG_IF(true);
    }
}

static void store(void *p, const inputs *x, const block *b) {
    if (x->dtype == ML_F32 || x->dtype == ML_I32)
        memcpy((float *)p + x->at, b->f, (size_t)x->n * 4);
    else
        for (int32_t k = 0; k < x->n; k++)
            ((uint16_t *)p)[x->at + k] =
                x->dtype == ML_BF16 ? ml_f32_to_bf16(b->f[k]) : ml_f32_to_f16(b->f[k]);
}

static void join(block *a, const block *b, const inputs *x) {
    if (x->dtype == ML_I32) {
        for (int32_t k = 0; k < x->n; k++)
            a->i[k] = x->op == ML_REDUCE_SUM
                          ? (int32_t)((uint32_t)a->i[k] + (uint32_t)b->i[k])
                          : (b->i[k] > a->i[k] ? b->i[k] : a->i[k]);
    } else if (x->op == ML_REDUCE_SUM) {
        for (int32_t k = 0; k < x->n; k++)
            a->f[k] += b->f[k];
    } else {
        for (int32_t k = 0; k < x->n; k++)
            a->f[k] = b->f[k] > a->f[k] || b->f[k] != b->f[k] ? b->f[k] : a->f[k];
    }
}

static void tree(block *out, const inputs *x, int32_t first, int32_t n) {
    block right;
    int32_t m = 1;

    if (n == 1) {
        load(out, x, first);
        return;
    }
    while (2 * m < n)
        m *= 2;
    tree(out, x, first, m);
    tree(&right, x, first + m, n - m);
    join(out, &right, x);
}

void ml_reduce_tree(void *out, const void *const *in, int32_t n, int64_t count,
                    ml_dtype dtype, ml_reduce_op op) {
    block b;

    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t left = count - at;
        inputs x = { in, at, left < BLOCK ? (int32_t)left : BLOCK, dtype, op };

        tree(&b, &x, 0, n);
        store(out, &x, &b);
    }
}
