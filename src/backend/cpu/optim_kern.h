/* optim_kern.h - passes over all gradients: AdamW and the norm. */
#ifndef ML_BACKEND_CPU_OPTIM_KERN_H
#define ML_BACKEND_CPU_OPTIM_KERN_H

#include <stdint.h>

#include "backend/optim.h"

typedef struct ml_optim_kern {
    /* A step of AdamW for n weights w with moments m and v.  No fused multiply-adds: on processors
     * without FMA each would be a function call. */
    void (*adamw)(float *w, float *m, float *v, const float *grad, int64_t n,
                  const ml_adamw *o);
    /* The sum of x[i]^2: lane l of 8 sums elements l, l+8, ...; the lanes are then added in
     * order. */
    double (*squares)(const float *x, int64_t n);
} ml_optim_kern;

#endif
