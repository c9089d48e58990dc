/* optim.h - what a backend computes on weights and gradients between two steps.
 *
 * Elementwise over flat memory; master weights, moments and gradients have the same
 * layout, and only a bf16 weight may store its elements in pairs (tensor.h).  Padding is
 * zero and stays zero.  Each product and sum is rounded separately, and a sum over many
 * elements uses fixed blocks: the bits are the same for any level and number of threads.
 * docs/TRAINING.md has the formulas.
 *
 * thread: the stream's owner. */
#ifndef ML_BACKEND_OPTIM_H
#define ML_BACKEND_OPTIM_H

#include "tensor/device.h"
#include "tensor/tensor.h"

#define ML_NORM_BLOCK 4096 /* elements per partial sum of squares */

/* One parameter.  master may be the weight itself; otherwise the weight is master rounded
 * to bf16, stored as bf16 or, for vectors, as an f32 of the same value. */
typedef struct ml_optim_param {
    int64_t n;
    float *master, *moment1, *moment2; /* [n]; moment2 NULL for SGD */
    const float *grad;                 /* [n] */
    ml_dtype dtype;                    /* of the weight */
    bool pairs;                        /* the weight is stored in pairs */
    void *weight;                      /* [n], or NULL: the master is the weight */
} ml_optim_param;

typedef struct ml_adamw {
    float lr, weight_decay, beta1, beta2, eps;
    float unbias1, unbias2; /* 1 / (1 - beta^t) */
    float grad_scale;       /* applied to the gradients first */
} ml_adamw;

typedef struct ml_sgd {
    float lr, weight_decay, momentum;
    float grad_scale;
} ml_sgd;

typedef struct ml_optim_ops {
    void (*adamw)(ml_stream *s, const ml_optim_param *p, const ml_adamw *o);
    void (*sgd)(ml_stream *s, const ml_optim_param *p, const ml_sgd *o);
    /* Writes the sum of squares of each block, in f64, to block [ceil(n / ML_NORM_BLOCK)]
     * in device memory. */
    void (*square_sums)(ml_stream *s, double *block, const float *x, int64_t n);
    /* y += x, both f32 [n]. */
    void (*add)(ml_stream *s, float *y, const float *x, int64_t n);
    /* y = x for a whole tensor of dtype f32 or bf16. */
    void (*widen)(ml_stream *s, float *y, const ml_tensor *x);
    void (*zero)(ml_stream *s, void *x, size_t bytes);
} ml_optim_ops;

#endif
