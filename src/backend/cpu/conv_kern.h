/* conv_kern.h - the short causal convolution of sixteen channels.
 *
 * Each channel is a sequence of its own: y[t] = silu(sum of w[j] x[t - taps + 1 + j]).
 * Rows before the first one are in `tail` [taps - 1], oldest first, or zeros. */
#ifndef ML_BACKEND_CPU_CONV_KERN_H
#define ML_BACKEND_CPU_CONV_KERN_H

#include <stdbool.h>
#include <stdint.h>

#define ML_CONV_TAPS 8 /* at most */

/* Weights of the block, tap by tap, as f32; bias NULL: none. */
typedef struct ml_conv_block {
    const float *w, *bias; /* [taps][16], [16] */
    int64_t taps, n;       /* channels of the block, at most 16 */
    int64_t ld;            /* floats from one row to the next */
} ml_conv_block;

typedef struct ml_conv_kern {
    /* The last rows are left in `tail` (NULL: no rows before, none left). */
    void (*forward)(const ml_conv_block *b, float *y, const float *x, float *tail,
                    bool first, int64_t n_row);
    /* dw [taps][16] and dbias [16] (NULL: not wanted) are added to, row by row; dx (NULL: not
     * wanted) is written, or added to. */
    void (*backward)(const ml_conv_block *b, float *dx, float *dw, float *dbias,
                     const float *dy, const float *x, int64_t n_row, bool add);
} ml_conv_kern;

#endif
