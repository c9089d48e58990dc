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

/* How a moment is stored.  FP8 is E4M3 in blocks of ML_MOMENT_BLOCK elements with a power of
 * two as their scale; of a second moment, its square root.  See backend/moments.h. */
typedef enum ml_moment_format {
    ML_MOMENT_F32,
    ML_MOMENT_BF16,
    ML_MOMENT_FP8
} ml_moment_format;
#define ML_MOMENT_BLOCK 256

/* One parameter.  master may be the weight itself; otherwise the weight is master rounded
 * to bf16, stored as bf16 or, for vectors, as an f32 of the same value. */
typedef struct ml_optim_param {
    int64_t n;
    float *master;
    float *moment1, *moment2; /* [n], f32 or in these formats; moment2 NULL: none */
    ml_moment_format format1, format2;
    uint64_t step, id, first; /* of stochastic rounding to FP8: the step, the parameter, and
                                 the number of its first element here */
    const float *grad;        /* [n] */
    ml_dtype dtype;           /* of the weight */
    bool pairs;               /* the weight is stored in pairs */
    void *weight;             /* [n], or NULL: the master is the weight */
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

/* Muon (Jordan et al., 2024): the momentum of a matrix, orthogonalized by Newton-Schulz
 * iterations x = a x + (b x x' + c (x x')^2) x. */
typedef struct ml_muon {
    float lr;       /* of the orthogonalized update, its scale by shape included */
    float decay;    /* lr times weight decay: w = w - decay w first */
    float momentum; /* m = m + (1 - momentum) (g - m) */
    bool nesterov;  /* g + momentum (m - g) is orthogonalized instead of m */
    float grad_scale;
    int32_t n_iter;
    const float (*coef)[3]; /* [n_iter] a, b, c */
} ml_muon;

/* Adafactor (Shazeer and Stern, 2018) without a first moment, as in transformers: moment1 has
 * the factors of a matrix's rows, moment2 those of its columns; a vector has the second
 * moments of its elements in moment2. */
typedef struct ml_adafactor {
    float lr, weight_decay;
    float beta2;          /* of this step */
    float eps;            /* added to the squares of gradients */
    float clip_threshold; /* of the update's root mean square */
    bool scale_parameter; /* lr is multiplied by the root mean square of the weights, or */
    float eps_scale;      /* this, if it is larger */
    float grad_scale;
} ml_adafactor;

typedef struct ml_optim_ops {
    void (*adamw)(ml_stream *s, const ml_optim_param *p, const ml_adamw *o);
    void (*sgd)(ml_stream *s, const ml_optim_param *p, const ml_sgd *o);
    /* Writes the sum of squares of each block, in f64, to block [ceil(n / ML_NORM_BLOCK)]
     * in device memory. */
    void (*square_sums)(ml_stream *s, double *block, const float *x, int64_t n);
    /* sum[i] = the sum of blocks first[i] .. first[i + 1] - 1, for n ranges, in an order that
     * depends on their number alone; all in device memory. */
    void (*sum_blocks)(ml_stream *s, double *sum, const double *block, const int64_t *first,
                       int32_t n);
    /* y += x, both f32 [n]. */
    void (*add)(ml_stream *s, float *y, const float *x, int64_t n);
    /* y = x for a whole tensor of dtype f32 or bf16. */
    void (*widen)(ml_stream *s, float *y, const ml_tensor *x);
    void (*zero)(ml_stream *s, void *x, size_t bytes);
    /* Quantizes a matrix, or a stack of them, by the rules of io/quantize.h; `from` is bf16,
     * row-major.  NULL: the host does. */
    void (*encode)(ml_stream *s, const ml_tensor *to, const ml_tensor *from);
    /* The same to bf16, row-major, by the rule of ml_quant_fake_int4. */
    void (*fake_int4)(ml_stream *s, const ml_tensor *to, const ml_tensor *from,
                      int64_t group);
    /* A whole matrix of a linear layer, or a stack of them, and the scratch it needs.  NULL:
     * the backend has none, nor formats of moments other than f32. */
    void (*muon)(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                 const ml_muon *o, void *scratch);
    size_t (*muon_scratch)(ml_stream *s, const ml_tensor *shape);
    /* A whole parameter: a vector, a matrix or a stack of them (a stack of vectors is one of
     * matrices with one row, without moment1). */
    void (*adafactor)(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                      const ml_adafactor *o, void *scratch);
    size_t (*adafactor_scratch)(ml_stream *s, const ml_tensor *shape);
} ml_optim_ops;

#endif
