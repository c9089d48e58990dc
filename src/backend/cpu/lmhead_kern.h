/* lmhead_kern.h - online softmax over tiles of the vocabulary, forward and backward. */
#ifndef ML_BACKEND_CPU_LMHEAD_KERN_H
#define ML_BACKEND_CPU_LMHEAD_KERN_H

#include <stdint.h>

/* Online softmax state of a row after some tiles; s = z / temperature, p = exp(s - m). */
typedef struct ml_lmhead_sum {
    float m, l, u; /* max of s, sum of p, sum of p * (s - m); initially -inf, 0, 0 */
} ml_lmhead_sum;

/* Inputs of a row's logit gradient. */
typedef struct ml_lmhead_grad {
    float m, inv_l, log_l, entropy;
    float dlogprob, dentropy;   /* gradients of the loss */
    float temperature, softcap; /* softcap 0: none */
    int64_t target; /* scored column, relative to the tile's first; may be outside */
} ml_lmhead_grad;

typedef struct ml_lmhead_kern {
    /* z = cap * tanh(z / cap). */
    void (*softcap)(float *z, int64_t n, float cap);
    /* Adds one tile to the state: n logits z (softcapped), at most ML_VTILE. */
    void (*sum)(ml_lmhead_sum *sum, const float *z, int64_t n, float temperature);
    /* The gradient of the loss with respect to n logits z (not softcapped); dz may alias
     * z. */
    void (*grad)(float *dz, const float *z, int64_t n, const ml_lmhead_grad *g);
} ml_lmhead_kern;

#endif
