/* attn_wgmma_back.cuh - what the kernels of attention backward with wgmma share.
 *
 * Keys are the rows of scores, and query rows their columns: a warpgroup has 64 keys, of which it sums
 * dk and dv over the query rows. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_BACK_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_BACK_CUH

#include "backend/cuda/attn/attn_fold.cuh"
#include "backend/cuda/attn/attn_wgmma.cuh"

/* Returns P of a score s; s becomes P times the derivative of softcap, the factor of dS. */
template <bool CAP>
__device__ static inline float attn_weigh(float &s, float shift, float to_log2, float cap) {
    float p = ml_exp2(fmaf(s, to_log2, -shift));
    s = !CAP || p == 0.0f ? p : p * attn_cap_slope(s, cap);
    return p;
}

/* P of scores s, as A fragments w; the columns of s are query rows with LSE shift. */
template <bool CAP>
__device__ static inline void attn_weigh_columns(uint32_t (&w)[4][4], float (&s)[8][4],
                                                 const float *shift, float to_log2,
                                                 float cap) {
    float p[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 by = *(const float2 *)(shift + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int k = 0; k < 4; k++)
            p[j][k] = attn_weigh<CAP>(s[j][k], k % 2 ? by.y : by.x, to_log2, cap);
    }
    attn_round<8>(w, p);
}

/* dS, as A fragments w, from dP; see attn_weigh. */
__device__ static inline void attn_slope_columns(uint32_t (&w)[4][4],
                                                 const float (&s)[8][4], float (&dp)[8][4],
                                                 const float *delta) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 by = *(const float2 *)(delta + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int k = 0; k < 4; k++)
            dp[j][k] = s[j][k] * (dp[j][k] - (k % 2 ? by.y : by.x));
    }
    attn_round<8>(w, dp);
}

template <int D, class T>
__device__ static void attn_put_keys(T *to, const float (&acc)[D / 8][4], float scale,
                                     const attn_call<bf16> &c, const ml_piece &p, int head,
                                     int key, bool add) {
    int lane = (int)threadIdx.x % 32;
    for (int r = 0; to && r < 2; r++) {
        int token = key + (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4 + 8 * r;
        if (token >= p.rows)
            continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            attn_put2(to + ((int64_t)(p.first_row + token) * c.n_kv + head) * c.d, c.d,
                      j * 8 + lane % 4 * 2, acc[j][2 * r] * scale,
                      acc[j][2 * r + 1] * scale, add);
    }
}

#endif
