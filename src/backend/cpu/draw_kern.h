/* draw_kern.h - kernels over a row of logits, for sampling.
 *
 * A token's distance is the largest scaled logit of the row minus its own; its weight is
 * exp(-distance), so that the most probable token has weight 1.  A NaN counts as -inf. */
#ifndef ML_BACKEND_CPU_DRAW_KERN_H
#define ML_BACKEND_CPU_DRAW_KERN_H

#include <stdint.h>

typedef struct ml_sample_kern {
    /* The largest of z; -inf when all are NaN or n is 0. */
    float (*max)(const float *z, int64_t n);
    /* d = m - z / temperature, at least +0; inf where the result is NaN. */
    void (*distance)(float *d, const float *z, int64_t n, float temperature, float m);
    /* w = exp(-d); returns the sum, accumulated in 16 lanes by plain additions, then
     * folded.  w may alias d. */
    float (*weigh)(float *w, const float *d, int64_t n);
} ml_sample_kern;

#endif
