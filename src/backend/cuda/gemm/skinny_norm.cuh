/* skinny_norm.cuh - the prologue of a skinny GEMM: RMSNorm of the rows of x, which every block computes.
 *
 * NORM_WARPS warps read rows from memory to registers and hand on the normed numbers.  A warp has one row
 * of up to NORM_NARROW numbers, or a part of each wider one: the order of norm.cu. */
#ifndef ML_BACKEND_CUDA_GEMM_SKINNY_NORM_CUH
#define ML_BACKEND_CUDA_GEMM_SKINNY_NORM_CUH

#include "backend/cuda/gemm/gemm_skinny.cuh"

enum {
    NORM_NARROW = 1024, /* the widest row that norm.cu sums in one warp */
    NORM_WARPS = 8,     /* warps that share a wider one there */
    NORM_PACKS = 4,     /* of 8 numbers that a lane has of such a row, at most */
    NORM_WIDEST = NORM_WARPS * 32 * 8 * NORM_PACKS
};

/* A lane's part of a row: every `stride`-th 8 numbers. */
struct norm_part {
    int warp, parts, first, stride;

    __device__ norm_part(const ml_skinny_gemm &f, int thread) {
        warp = thread / 32;
        parts = f.k <= NORM_NARROW ? 1 : NORM_WARPS;
        first = 8 * (32 * (warp % parts) + thread % 32);
        stride = 256 * parts;
    }

    /* Of pack j; below 0: the row ends before. */
    __device__ int at(const ml_skinny_gemm &f, int j) const {
        return first + j * stride < f.k ? first + j * stride : -1;
    }
};

/* The weights of the norm.  They do not depend on the previous kernel. */
__device__ static inline void norm_load_weights(float (&w)[NORM_PACKS][8],
                                                const ml_skinny_gemm &f, int thread) {
    const norm_part p(f, thread);

    if (!f.norm || p.warp >= NORM_WARPS)
        return;
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++)
        if (p.at(f, j) >= 0) {
            *(float4 *)w[j] = *(const float4 *)(f.norm + p.at(f, j));
            *(float4 *)(w[j] + 4) = *(const float4 *)(f.norm + p.at(f, j) + 4);
        }
}

__device__ static inline void norm_load_row(uint4 (&v)[NORM_PACKS], const ml_skinny_gemm &f,
                                            const norm_part &p, int row) {
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++)
        if (row < f.m && p.at(f, j) >= 0)
            v[j] = __ldcg((const uint4 *)(f.x + (int64_t)row * f.k + p.at(f, j)));
}

/* The sum of squares of a warp's part. */
__device__ static inline float norm_squares(const uint4 (&row)[NORM_PACKS],
                                            const ml_skinny_gemm &f, const norm_part &p) {
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++)
        if (p.at(f, j) >= 0) {
            float v[8];
            ml_load(v, (const bf16 *)&row[j]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(v[i], v[i], sum);
        }
    return ml_warp_sum(sum);
}

/* 1 / the root mean square of a row. */
__device__ static inline float norm_scale(const float *squares, int parts,
                                          const ml_skinny_gemm &f) {
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < NORM_WARPS; i++)
        sum = i < parts ? sum + squares[i] : sum;
    return 1.0f / sqrtf(sum / (float)f.k + f.eps);
}

/* The row's numbers of a lane, normed, to put(row, i, v): eight from number i on. */
template <class P>
__device__ static inline void
norm_put_row(const P &put, const uint4 (&from)[NORM_PACKS], const float (&w)[NORM_PACKS][8],
             float scale, const ml_skinny_gemm &f, const norm_part &p, int row) {
#pragma unroll
    for (int j = 0; j < NORM_PACKS; j++) {
        const int i = p.at(f, j);
        float v[8];
        if (i < 0)
            continue;
        ml_load(v, (const bf16 *)&from[j]);
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = (v[e] * scale) * (w[j][e] + (f.plus_one ? 1.0f : 0.0f));
        put(row, i, v);
        if (blockIdx.x == 0 && f.normed)
            ml_store(f.normed + (int64_t)row * f.k + i, v);
    }
}

/* All rows.  NORM_WARPS warps call it, with the named barrier BAR; squares: [m, NORM_WARPS] in shared memory. */
template <int BAR, class P>
__device__ static inline void norm_rows(const P &put, float *squares,
                                        const float (&w)[NORM_PACKS][8],
                                        const ml_skinny_gemm &f, int thread) {
    const norm_part p(f, thread);
    const int every = NORM_WARPS / p.parts;
    int row = p.warp / p.parts;
    uint4 v[NORM_PACKS];

    for (int first = 0; first < f.m; first += every, row += every) {
        norm_load_row(v, f, p, row);
        float sum = norm_squares(v, f, p);
        if (thread % 32 == 0 && row < f.m)
            squares[row * p.parts + p.warp % p.parts] = sum;
        asm volatile("bar.sync %0, %1;" ::"n"(BAR), "n"(NORM_WARPS * 32) : "memory");
        if (row < f.m)
            norm_put_row(put, v, w, norm_scale(squares + row * p.parts, p.parts, f), f, p,
                         row);
    }
}

#endif
