/* few.cuh - products of few rows, together with what stands before and after them.
 *
 * What a decode step of few sequences costs is the latency of its kernels, one after the other:
 * so a norm, the products that read it, and a sum or a gate behind them are one kernel.  Every
 * number is rounded where the ops one by one round it, and every sum has their order. */
#ifndef ML_BACKEND_CUDA_FEW_CUH
#define ML_BACKEND_CUDA_FEW_CUH

#include "backend/cuda/common.cuh"

enum { ML_FEW_ROWS = 16, ML_FEW_PARTS = 3 };

typedef struct ml_few_part {
    const bf16 *w;     /* [n, k] */
    const float *bias; /* [n] or NULL */
    bf16 *y;           /* [m, n]; NULL: not wanted */
    int n;
} ml_few_part;

typedef struct ml_few {
    const bf16 *x; /* [m, k] */
    int m, k;
    const float *norm; /* [k] weights of a norm that comes first, or NULL: there is none */
    bf16 *normed;      /* [m, k] */
    float eps;
    bool plus_one;
    ml_few_part part[ML_FEW_PARTS];
    int n_part;
    const bf16 *addend; /* sum = y of part 0 + addend; NULL: no sum */
    bf16 *sum;
    bf16 *gated; /* gate of part 0 times part 1; NULL: no gate */
    ml_act act;
} ml_few;

/* Is there a kernel?  Up to ML_FEW_ROWS rows that fit a multiprocessor. */
bool ml_few_takes(const ml_few *f);
void ml_few_run(ml_cuda_stream *s, const ml_few *f);

#endif
