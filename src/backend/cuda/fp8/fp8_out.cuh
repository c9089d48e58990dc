/* fp8_out.cuh - FP8 codes of bf16 numbers as inputs of products (fp8.cuh), written by the kernel that computes the
 * numbers or by one that reads them. */
#ifndef ML_BACKEND_CUDA_FP8_FP8_OUT_CUH
#define ML_BACKEND_CUDA_FP8_FP8_OUT_CUH

#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"

enum {
    ML_FP8_GROUP = 128,
    ML_FP8_LANE = 8, /* numbers of a lane */
    ML_FP8_LANES = ML_FP8_GROUP / ML_FP8_LANE
};

/* Codes [rows, width] and scales [width / 128][rows]; the width is a multiple of 128.  code NULL: none. */
typedef struct ml_fp8_out {
    unsigned char *code;
    float *scale;
    int64_t rows, width;
} ml_fp8_out;

/* The largest magnitude of the numbers of LANES adjacent lanes, all of which call it; NaN does not count. */
template <int LANES>
__device__ static inline float ml_fp8_amax(const float (&v)[ML_FP8_LANE]) {
    const unsigned half = 0xffffu << (threadIdx.x & 16);
    float amax = 0.0f;

#pragma unroll
    for (int i = 0; i < ML_FP8_LANE; i++)
        amax = fmaxf(fabsf(v[i]), amax);
#pragma unroll
    for (int w = LANES / 2; w; w >>= 1)
        amax = fmaxf(amax, __shfl_xor_sync(half, amax, w));
    return amax;
}

__device__ static inline float ml_fp8_scale(float amax) {
    return ml_max(amax, 1e-10f) / 448.0f;
}

/* Codes of a lane's numbers times `inverse`, to nearest even, saturating at 448. */
__device__ static inline uint2 ml_fp8_codes(const float (&v)[ML_FP8_LANE], float inverse) {
    uint32_t two[ML_FP8_LANE / 2];

#pragma unroll
    for (int i = 0; i < ML_FP8_LANE / 2; i++)
        two[i] = __nv_cvt_float2_to_fp8x2(
            make_float2(v[2 * i] * inverse, v[2 * i + 1] * inverse), __NV_SATFINITE,
            __NV_E4M3);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Writes the codes of a lane, and by one lane of a group its scale. */
__device__ static inline void ml_fp8_store(const ml_fp8_out &o, int64_t row, int64_t col,
                                           uint2 codes, float scale) {
    *(uint2 *)(o.code + row * o.width + col) = codes;
    if (threadIdx.x % ML_FP8_LANES == 0)
        o.scale[col / ML_FP8_GROUP * o.rows + row] = scale;
}

/* A lane's numbers, which are bf16 values, from column `col` of a row on.  The 16 lanes of a group call it; there
 * false: writes nothing. */
__device__ static inline void ml_fp8_put(const ml_fp8_out &o, int64_t row, int64_t col,
                                         const float (&v)[ML_FP8_LANE], bool there) {
    float scale = ml_fp8_scale(ml_fp8_amax<ML_FP8_LANES>(v));
    uint2 codes = ml_fp8_codes(v, 1.0f / scale);

    if (there)
        ml_fp8_store(o, row, col, codes, scale);
}

/* v: the bf16 values nearest to x. */
__device__ static inline void ml_fp8_round_bf16(float (&v)[ML_FP8_LANE],
                                                const float (&x)[ML_FP8_LANE]) {
#pragma unroll
    for (int i = 0; i < ML_FP8_LANE; i += 2) { /* conversions of single numbers are slow */
        float2 two = __bfloat1622float2(__floats2bfloat162_rn(x[i], x[i + 1]));
        v[i] = two.x;
        v[i + 1] = two.y;
    }
}

/* The same of numbers that are rounded to bf16 first. */
__device__ static inline void ml_fp8_put_rounded(const ml_fp8_out &o, int64_t row,
                                                 int64_t col, const float (&x)[ML_FP8_LANE],
                                                 bool there) {
    float v[ML_FP8_LANE];

    ml_fp8_round_bf16(v, x);
    ml_fp8_put(o, row, col, v, there);
}

/* The same of N packs of a lane, from columns first, first + step ... on, those below `width`.  Their chains of
 * shuffles and divisions do not wait for each other. */
template <int N>
__device__ static inline void ml_fp8_put_packs(const ml_fp8_out &o, int64_t row, int first,
                                               int step, int width,
                                               const float (&x)[N][ML_FP8_LANE]) {
    const unsigned half = 0xffffu << (threadIdx.x & 16);
    float v[N][ML_FP8_LANE], amax[N];

#pragma unroll
    for (int j = 0; j < N; j++) {
        ml_fp8_round_bf16(v[j], x[j]);
        amax[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < ML_FP8_LANE; i++)
            amax[j] = fmaxf(fabsf(v[j][i]), amax[j]);
    }
#pragma unroll
    for (int w = ML_FP8_LANES / 2; w; w >>= 1)
#pragma unroll
        for (int j = 0; j < N; j++)
            amax[j] = fmaxf(amax[j], __shfl_xor_sync(half, amax[j], w));
#pragma unroll
    for (int j = 0; j < N; j++) {
        float scale = ml_fp8_scale(amax[j]);
        uint2 codes = ml_fp8_codes(v[j], 1.0f / scale);
        if (first + j * step < width)
            ml_fp8_store(o, row, first + j * step, codes, scale);
    }
}

#endif
