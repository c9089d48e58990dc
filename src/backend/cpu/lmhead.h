/* lmhead.h - log-probability and entropy of a row of logits, with the bits of LMHEAD. */
#ifndef ML_BACKEND_CPU_LMHEAD_H
#define ML_BACKEND_CPU_LMHEAD_H

#include "backend/cpu/cpu_priv.h"
#include "backend/support.h"

typedef struct ml_logprob {
    float logprob; /* of the given id; 0 when id is -1 */
    float entropy;
    float m, l; /* maximum of the scaled logits, sum of exp(s - m) */
} ml_logprob;

/* z [n]: a row of LMHEAD's logits.  thread: any. */
ml_logprob ml_logprob_of(const ml_cpu_kern *kern, const float *z, int64_t n, int32_t id,
                         float temperature);

/* The same over a support, without the entropy. */
ml_logprob ml_logprob_over(const ml_cpu_kern *kern, const float *z, int64_t n, int32_t id,
                           float temperature, ml_str support);

#endif
