/* row_kern.h - operations on one row: norms, rotary embedding, activations, sums.
 *
 * n counts elements.  Outputs may alias an input, except where noted.  Sums over a row
 * accumulate in 16 lanes (lane = index mod 16) by v16_fma and are folded by v16_fold.
 * `add`: add to the output instead of writing it. */
#ifndef ML_BACKEND_CPU_ROW_KERN_H
#define ML_BACKEND_CPU_ROW_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/ops.h"

typedef void ml_rope_fn(float *y, const float *x, const float *cs, int64_t half, bool back,
                        bool add);
typedef void ml_glu_fn(float *y, const float *g, const float *u, int64_t n);
typedef void ml_glu_back_fn(float *dg, float *du, const float *dy, const float *g,
                            const float *u, int64_t n, bool add_g, bool add_u);

/* Constants of cut_back. */
typedef struct ml_row_cut {
    float at, mean, shift, tilt;
} ml_row_cut;

typedef struct ml_row_kern {
    /* sum of a[i] * b[i] */
    float (*dot)(const float *a, const float *b, int64_t n);
    /* y = a + b */
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    /* y = fma(c, x, y), or fma(c, x, +0) unless `add` */
    void (*axpy)(float *y, float c, const float *x, int64_t n, bool add);

    /* y = (x * r) * w, or (x * r) * (1 + w) when plus_one */
    void (*norm)(float *y, const float *x, const float *w, float r, int64_t n,
                 bool plus_one);
    /* The gradient of norm with respect to x, including the dependence of r on x. */
    void (*norm_dx)(float *dx, const float *dy, const float *x, const float *w, float r,
                    int64_t n, bool plus_one, bool add);
    /* sum = sum + dy * (x * r), the products with dy exact; x NULL: sum + dy */
    void (*columns)(double *sum, const float *dy, const float *x, float r, int64_t n);

    /* Rotates the first 2 * half elements of a head by the angles of cs [2, half], or
     * by their negatives when `back`: pairs (i, half + i) or (2i, 2i + 1). */
    ml_rope_fn *rope_halves, *rope_pairs;

    /* y = act(g) * u, indexed by ml_act; dg or du may be NULL: not computed */
    ml_glu_fn *glu[ML_ACT_COUNT];
    ml_glu_back_fn *glu_back[ML_ACT_COUNT];
    /* The same with silu, of inputs clamped to a limit. */
    void (*glu_limited)(float *y, const float *g, const float *u, int64_t n, float limit);
    void (*glu_limited_back)(float *dg, float *du, const float *dy, const float *g,
                             const float *u, int64_t n, bool add_g, bool add_u,
                             float limit);

    /* y = tanh(x); dx = dy (1 - y) (1 + y) */
    void (*tanh)(float *y, const float *x, int64_t n);
    void (*tanh_back)(float *dx, const float *dy, const float *y, int64_t n, bool add);

    /* sums of x[i], of (x[i] - mean)^2, of dy[i] where x[i] > at */
    float (*sum)(const float *x, int64_t n);
    float (*deviation)(const float *x, float mean, int64_t n);
    float (*cut_sum)(const float *dy, const float *x, float at, int64_t n);
    /* y = relu(x - at); dx = fma(tilt, x - mean, g + shift), g = dy where x > at, else 0 */
    void (*cut)(float *y, const float *x, float at, int64_t n);
    void (*cut_back)(float *dx, const float *dy, const float *x, const ml_row_cut *c,
                     int64_t n, bool add);

    void (*sigmoid)(float *p, const float *x, int64_t n);
    /* p = exp(x - max x) / sum; p must not alias x */
    void (*softmax)(float *p, const float *x, int64_t n);
} ml_row_kern;

#endif
