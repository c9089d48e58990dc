/* conv_kern.h - the short causal (depthwise) convolution of sixteen channels.
 *
 * Each channel is convolved on its own: y[t] = silu(sum of w[j] x[t - taps + 1 + j]).
 * `tail` [taps - 1] has the rows before the first one, oldest first; without it they are
 * 0. */
#ifndef ML_BACKEND_CPU_CONV_KERN_H
#define ML_BACKEND_CPU_CONV_KERN_H

#include <stdbool.h>
#include <stdint.h>

#define ML_CONV_TAPS 8 /* maximum */

/* Weights of the block, one vector per tap, as f32; bias NULL: none. */
typedef struct ml_conv_block {
    const float *w, *bias; /* [taps][16], [16] */
    int64_t taps, n;       /* channels of the block, at most 16 */
    int64_t ld;            /* row stride in floats */
} ml_conv_block;

typedef struct ml_conv_kern {
    /* Stores the last rows in `tail` (NULL: zeros before the first row, nothing stored). */
    void (*forward)(const ml_conv_block *b, float *y, const float *x, float *tail,
                    bool first, int64_t n_row);
    /* Adds to dw [taps][16] and dbias [16] (NULL: not computed) the sums over the rows, in
     * f64, rounded to f32; writes or adds to dx (NULL: not computed). */
    void (*backward)(const ml_conv_block *b, float *dx, float *dw, float *dbias,
                     const float *dy, const float *x, int64_t n_row, bool add);
} ml_conv_kern;

#endif
