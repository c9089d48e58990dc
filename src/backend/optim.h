/* optim.h - what a backend does to weights and gradients between two steps.
 *
 * Elementwise over flat memory; masters, moments and gradients lie alike, and only a bf16
 * weight may have its elements in pairs (tensor.h).  Padding is zero and stays
 * zero.  Every product and sum is rounded on its own, and a sum over many elements has
 * fixed blocks: the results are the same bits for any level and number of threads.
 * docs/TRAINING.md has the formulas.
 *
 * thread: the stream's owner. */
#ifndef ML_BACKEND_OPTIM_H
#define ML_BACKEND_OPTIM_H

#include "tensor/device.h"
#include "tensor/tensor.h"

#define ML_NORM_BLOCK 4096 /* elements whose squares are summed before blocks are */

/* One parameter.  master may be the weight itself; otherwise the weight is master rounded to
 * bf16, stored as bf16 or, for vectors, as the f32 of the same value. */
typedef struct ml_optim_param {
    int64_t n;
    float *master, *moment1, *moment2; /* [n]; moment2 NULL for SGD */
    const float *grad;                 /* [n] */
    ml_dtype dtype;                    /* of the weight */
    bool pairs;                        /* of the weight */
    void *weight;                      /* [n], or NULL: it is the master */
} ml_optim_param;

typedef struct ml_adamw {
    float lr, weight_decay, beta1, beta2, eps;
    float unbias1, unbias2; /* 1 / (1 - beta^t) */
    float grad_scale;       /* gradients are multiplied by it first */
} ml_adamw;

typedef struct ml_sgd {
    float lr, weight_decay, momentum;
    float grad_scale;
} ml_sgd;

typedef struct ml_optim_ops {
    void (*adamw)(ml_stream *s, const ml_optim_param *p, const ml_adamw *o);
    void (*sgd)(ml_stream *s, const ml_optim_param *p, const ml_sgd *o);
    /* block [ceil(n / ML_NORM_BLOCK)], in the device's memory, gets the sum of squares of each
     * block, in f64. */
    void (*square_sums)(ml_stream *s, double *block, const float *x, int64_t n);
    /* y += x, both f32 [n]. */
    void (*add)(ml_stream *s, float *y, const float *x, int64_t n);
    /* y = x, all of a tensor of type f32 or bf16. */
    void (*widen)(ml_stream *s, float *y, const ml_tensor *x);
    void (*zero)(ml_stream *s, void *x, size_t bytes);
} ml_optim_ops;

#endif
