/* attn_decode.cuh - what the decode kernels share: the online softmax of one query row per
 * sequence, whose scores all warps of a block read from shared memory. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_DECODE_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_DECODE_CUH

#include "backend/cuda/attn/attn_mma.cuh"

enum {
    DECODE_ROWS = 16,
    DECODE_OWN = ML_KTILE / ATTN_WARPS, /* keys of a tile whose scores a warp computes */
    DECODE_LD = ML_KTILE + 8            /* of scores */
};

/* Online-softmax state and accumulators of a lane's R rows; R is 1 for up to 8 rows. */
template <int R, int N> struct decode_state {
    float m[R], l[R], acc[N][4];
    float to_log2;
};

/* To shared memory, for all warps to read. */
template <int R>
__device__ static inline void decode_put_scores(float *to, const float (&s)[2][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int r = 0; r < R; r++)
            *(float2 *)(to + (lane / 4 + 8 * r) * DECODE_LD + warp * DECODE_OWN + j * 8 +
                        lane % 4 * 2) = make_float2(s[j][2 * r], s[j][2 * r + 1]);
}

/* Online softmax over a tile, for one of the lane's rows: scores become weights. */
template <int R, int N>
__device__ static inline void decode_fold_row(decode_state<R, N> &x, float (&s)[8][2],
                                              int r, int tile, int lo, int hi,
                                              const attn_call<bf16> &c) {
    int lane = (int)threadIdx.x % 32;
    float top = x.m[r], shift, keep, sum = 0.0f;

    if (c.softcap != 0.0f) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                s[j][k] = c.softcap * ml_tanh(s[j][k] * c.scale / c.softcap);
    }
    if (tile < lo || tile + ML_KTILE - 1 > hi) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int key = tile + j * 8 + lane % 4 * 2 + k;
                if (key > hi || key < lo)
                    s[j][k] = -INFINITY;
            }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            top = fmaxf(top, s[j][k]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    shift = top == -INFINITY ? 0.0f : top * x.to_log2;
    keep = top == x.m[r] ? 1.0f : ml_exp2((x.m[r] - top) * x.to_log2);
    x.m[r] = top;
    x.l[r] *= keep;
#pragma unroll
    for (int j = 0; j < N; j++) {
        x.acc[j][2 * r] *= keep;
        x.acc[j][2 * r + 1] *= keep;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            s[j][k] = ml_exp2(fmaf(s[j][k], x.to_log2, -shift));
            sum += s[j][k];
        }
    x.l[r] += sum;
}

/* Weights P of a tile as A fragments; rows from 8 R on are zero. */
template <int R, int N>
__device__ static inline void decode_fold(decode_state<R, N> &x, uint32_t (&w)[4][4],
                                          const float *scores, int tile, int lo, int hi,
                                          const attn_call<bf16> &c) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float s[8][2] = {};
        if (r < R) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float2 v = *(const float2 *)(scores + (lane / 4 + 8 * r) * DECODE_LD +
                                             j * 8 + lane % 4 * 2);
                s[j][0] = v.x;
                s[j][1] = v.y;
            }
            decode_fold_row<R, N>(x, s, r < R ? r : 0, tile, lo, hi, c);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k][r] = ml_pack2(s[2 * k][0], s[2 * k][1]);
            w[k][2 + r] = ml_pack2(s[2 * k + 1][0], s[2 * k + 1][1]);
        }
    }
}

#endif
