/* lmhead.cuh - the distribution of a row of logits, for the LM head and the sampler. */
#ifndef ML_BACKEND_CUDA_LMHEAD_CUH
#define ML_BACKEND_CUDA_LMHEAD_CUH

#include "backend/cuda/common.cuh"

enum { ML_ROW_THREADS = 512 }; /* of the block that has a row */

/* m: the largest s; l: the sum of exp(s - m); u: that of exp(s - m) (s - m); s = z / t. */
typedef struct ml_row_stat {
    float m, l, u;
} ml_row_stat;

/* By a block of ML_ROW_THREADS; all threads get it.  Thread t has columns t, t + 512, ...: the
 * order of sums follows from the number of columns. */
__device__ static inline ml_row_stat ml_row_stat_of(const float *z, int64_t n, float t,
                                                    float *room) {
    const int warps = ML_ROW_THREADS / 32;
    ml_row_stat r = { -INFINITY, 0.0f, 0.0f };

    for (int64_t i = threadIdx.x; i < n; i += ML_ROW_THREADS)
        r.m = ml_max(r.m, z[i] / t);
    r.m = ml_block_max<warps>(r.m, room);
    for (int64_t i = threadIdx.x; i < n; i += ML_ROW_THREADS) {
        float d = z[i] / t - r.m, p = ml_exp(d);
        r.l += p;
        r.u = p > 0.0f ? fmaf(p, d, r.u) : r.u;
    }
    r.l = ml_block_sum<warps>(r.l, room);
    r.u = ml_block_sum<warps>(r.u, room);
    return r;
}

__device__ static inline float ml_row_logprob(ml_row_stat r, float z, float t) {
    return (z / t - r.m) - logf(r.l);
}

__device__ static inline float ml_row_entropy(ml_row_stat r) {
    return logf(r.l) - r.u / r.l;
}

#endif
