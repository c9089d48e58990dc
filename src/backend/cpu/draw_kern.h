/* draw_kern.h - a row of logits on its way to a draw.
 *
 * A token's distance is how far its scaled logit lies below the row's largest, its weight
 * is exp(-distance): the largest has the weight 1.  A NaN counts as -inf. */
#ifndef ML_BACKEND_CPU_DRAW_KERN_H
#define ML_BACKEND_CPU_DRAW_KERN_H

#include <stdint.h>

typedef struct ml_sample_kern {
    /* The largest of z; -inf when there is none. */
    float (*max)(const float *z, int64_t n);
    /* d = m - z / temperature, never below +0; inf where that is no number. */
    void (*distance)(float *d, const float *z, int64_t n, float temperature, float m);
    /* w = exp(-d); returns their sum, in 16 lanes of plain additions, folded.  w may be d. */
    float (*weigh)(float *w, const float *d, int64_t n);
} ml_sample_kern;

#endif
