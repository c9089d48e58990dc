/* lmhead.cuh - softmax statistics of a row of logits, for the LM head and the sampler.
 *
 * A row is cut into splits of ML_SPLIT columns at absolute positions, one block per
 * split, whatever the number of rows; the splits' results are merged in order.  So one
 * row of a decode step keeps many SMs busy, and has the same bits alone as among
 * thousands. */
#ifndef ML_BACKEND_CUDA_GEMM_LMHEAD_CUH
#define ML_BACKEND_CUDA_GEMM_LMHEAD_CUH

#include "backend/cuda/common.cuh"

enum { ML_SPLITS = 64, ML_SPLIT_THREADS = 256 };

/* Of s = z / t.  m: max; l: sum of exp(s - m); u: sum of exp(s - m) (s - m) (entropy). */
typedef struct ml_row_stat {
    float m, l, u;
} ml_row_stat;
static_assert(sizeof(ml_row_stat) == ML_SPLIT_STAT_BYTES, "cuda_ops.h has its size");

/* z / t; a division is a dozen instructions, and mostly t is 1. */
__device__ static inline float ml_scaled(float z, float t) {
    return t == 1.0f ? z : z / t;
}

/* Of n columns (at most ML_SPLIT) from z on, by a block of ML_SPLIT_THREADS; all threads get
 * the result.  A thread keeps its columns in registers: they are read once. */
__device__ static inline ml_row_stat ml_split_stat(const float *z, int64_t n, float t,
                                                   float *smem) {
    const int warps = ML_SPLIT_THREADS / 32, columns = ML_SPLIT / ML_SPLIT_THREADS;
    const int most = (int)n;
    ml_row_stat r = { -INFINITY, 0.0f, 0.0f };
    float s[columns];

#pragma unroll
    for (int k = 0; k < columns; k++) {
        int i = (int)threadIdx.x + k * ML_SPLIT_THREADS;
        s[k] = i < most ? z[i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < columns; k++) {
        s[k] = ml_scaled(s[k], t);
        if ((int)threadIdx.x + k * ML_SPLIT_THREADS < most)
            r.m = ml_max(r.m, s[k]);
    }
    r.m = ml_block_max<warps>(r.m, smem);
#pragma unroll
    for (int k = 0; k < columns; k++) {
        float d = s[k] - r.m, p = ml_exp(d);
        if ((int)threadIdx.x + k * ML_SPLIT_THREADS < most) {
            r.l += p;
            r.u = p > 0.0f ? fmaf(p, d, r.u) : r.u;
        }
    }
    r.l = ml_block_sum<warps>(r.l, smem);
    r.u = ml_block_sum<warps>(r.u, smem);
    return r;
}

__device__ static inline bool ml_in_support(const uint32_t *bits, int64_t i) {
    return bits[i / 32] >> i % 32 & 1;
}

/* The same of the columns whose bit is set; all bits set: the same bits as above. */
__device__ static inline ml_row_stat ml_split_over(const float *z, const uint32_t *bits,
                                                   int64_t n, float t, float *smem) {
    const int warps = ML_SPLIT_THREADS / 32;
    ml_row_stat r = { -INFINITY, 0.0f, 0.0f };

    for (int64_t i = threadIdx.x; i < n; i += ML_SPLIT_THREADS)
        r.m = ml_max(r.m, ml_in_support(bits, i) ? ml_scaled(z[i], t) : -INFINITY);
    r.m = ml_block_max<warps>(r.m, smem);
    for (int64_t i = threadIdx.x; i < n && r.m > -INFINITY; i += ML_SPLIT_THREADS)
        r.l += ml_in_support(bits, i) ? ml_exp(ml_scaled(z[i], t) - r.m) : 0.0f;
    r.l = ml_block_sum<warps>(r.l, smem);
    return r;
}

/* Merges the statistics of a row's splits. */
__device__ static inline ml_row_stat ml_row_merge(const ml_row_stat *part, int n) {
    ml_row_stat r = { -INFINITY, 0.0f, 0.0f };

    for (int i = 0; i < n; i++)
        r.m = ml_max(r.m, part[i].m);
    for (int i = 0; i < n; i++) {
        float d = part[i].m - r.m, c = ml_exp(d);
        if (c > 0.0f || c != c) {
            r.l = fmaf(c, part[i].l, r.l);
            r.u = fmaf(c, fmaf(d, part[i].l, part[i].u), r.u);
        }
    }
    return r;
}

__device__ static inline float ml_row_logprob(ml_row_stat r, float z, float t) {
    return (ml_scaled(z, t) - r.m) - logf(r.l);
}

__device__ static inline float ml_row_entropy(ml_row_stat r) {
    return logf(r.l) - r.u / r.l;
}

#endif
