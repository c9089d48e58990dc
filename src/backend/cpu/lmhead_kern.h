/* lmhead_kern.h - softmax over a tile of the vocabulary, forward and backward. */
#ifndef ML_BACKEND_CPU_LMHEAD_KERN_H
#define ML_BACKEND_CPU_LMHEAD_KERN_H

#include <stdint.h>

/* A row's softmax over the tiles seen so far; s = z / temperature, p = exp(s - m). */
typedef struct ml_lmhead_sum {
    float m, l, u; /* maximum of s, sum of p, sum of p * (s - m); start: -inf, 0, 0 */
} ml_lmhead_sum;

/* What a row's logit gradient is made of. */
typedef struct ml_lmhead_grad {
    float m, inv_l, log_l, entropy;
    float dlogprob, dentropy;   /* of the loss */
    float temperature, softcap; /* softcap 0: none */
    int64_t target; /* column scored, counted from the tile's first; may lie outside */
} ml_lmhead_grad;

typedef struct ml_lmhead_kern {
    /* z = cap * tanh(z / cap). */
    void (*softcap)(float *z, int64_t n, float cap);
    /* Takes in one tile: n logits z (softcapped), at most ML_VTILE. */
    void (*sum)(ml_lmhead_sum *sum, const float *z, int64_t n, float temperature);
    /* The derivative of the loss by n logits z (not softcapped); dz may be z. */
    void (*grad)(float *dz, const float *z, int64_t n, const ml_lmhead_grad *g);
} ml_lmhead_kern;

#endif
