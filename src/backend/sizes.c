#include "backend/sizes.h"

#include <stdlib.h>

#include "backend/cuda_ops.h"
#include "base/bug.h"

typedef struct sizes {
    ml_device dev;
    ml_stream stream;
    ml_ops ops;
    ml_sizes_opts opts;
} sizes;

static void compute(ml_stream *s, const ml_op_args *a) {
    (void)s;
    (void)a;
    ML_BUG_IF(true); /* a plan on this backend is never run */
}

static int compute_together(ml_stream *s, const ml_op_call *call, int n) {
    (void)n;
    compute(s, &call->args);
    return 0;
}

static ml_status no_memory(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                           ml_err *err) {
    (void)out;
    (void)bytes;
    return ml_fail(err, ML_EUNSUP, "a planned %s has no memory for %s", d->name,
                   ml_mem_name(kind));
}

static size_t used(const ml_device *d) {
    return ((const sizes *)d)->opts.base_bytes;
}

static size_t available(const ml_device *d) {
    const ml_sizes_opts *o = &((const sizes *)d)->opts;
    return o->memory_bytes - o->base_bytes;
}

static void close_sizes(ml_backend *b) {
    free(b->priv);
}

bool ml_cuda_has_op(ml_op_id op) {
#define CASE(id, name) case ML_OP_##id:
    switch (op) {
        ML_CUDA_OP_LIST(CASE)
        return true;
    default: return false;
    }
#undef CASE
}

ml_status ml_backend_sizes_open(ml_backend *out, const ml_sizes_opts *o, ml_err *err) {
    sizes *s = calloc(1, sizeof *s);

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for a planned %s", o->kind);
    s->opts = *o;
    s->dev = (ml_device){ .name = o->kind,
                          .alloc = no_memory,
                          .available = available,
                          .used = used,
                          .peak = used };
    s->stream.dev = &s->dev;
    for (int i = 0; i < ML_OP_COUNT; i++)
        s->ops.forward[i] = s->ops.backward[i] = compute;
    s->ops.together_back = compute_together; /* for which a plan has scratch memory */
    s->ops.scratch = ml_cuda_op_scratch;
    s->ops.sample_scratch = ml_cuda_sample_scratch;
    *out = (ml_backend){ .name = "cuda",
                         .level = o->kind,
                         .act = o->f32 ? ML_F32 : ML_BF16,
                         .linear = ML_ROWS,
                         .dev = &s->dev,
                         .stream = &s->stream,
                         .ops = &s->ops,
                         .async = true,
                         .n_thread = 1,
                         .close = close_sizes,
                         .priv = s };
    return ML_OK;
}
