#include "train/grad_shards.h"

#include "base/bug.h"

ml_status ml_grad_shards_open(ml_grad_shards *out, int32_t n, const ml_spec *s,
                              const ml_grads *g, ml_backend *be, ml_arena *a, ml_err *err) {
    ml_status st = ML_OK;

    *out = (ml_grad_shards){ .waiting = ML_NEW(a, ml_weights, n + 1) };
    for (; out->n < n && st == ML_OK; out->n++)
        st = ml_weights_zeros_part(&out->waiting[out->n], s, g->sum.range, be, a, err);
    return st;
}

void ml_grad_shards_close(ml_grad_shards *x) {
    while (x->n > 0)
        ml_weights_close(&x->waiting[--x->n]);
}

/* A binary counter of sums: shard k joins the sums of 1, 2, 4, ... shards before it whose
 * other half it completes, and waits for its own other half, unless it is the last. */
ml_status ml_grad_shards_add(ml_grad_shards *x, ml_grads *g, int32_t k, bool last,
                             ml_err *err) {
    int32_t level = 0;
    ml_weights mine;

    for (; k >> level & 1; level++)
        g->be->optim->add(g->be->stream, g->sum.buf.ptr, x->waiting[level].buf.ptr,
                          (int64_t)(g->sum.buf.bytes / sizeof(float)));
    if (last)
        return ML_OK;
    ML_BUG_IF(level >= x->n);
    if (g->lora) /* the adapter has its gradients */
        return ml_weights_copy(&x->waiting[level], &g->sum, g->be, err);
    mine = g->sum;
    g->sum = x->waiting[level];
    x->waiting[level] = mine;
    return ML_OK;
}
