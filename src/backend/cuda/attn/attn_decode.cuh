/* attn_decode.cuh - what the decode kernels share: the online softmax of one query row per
 * sequence, whose scores all warps of a block read from shared memory.
 *
 * Keys and values are the first mma operand, whose 16 rows are keys, or columns of values; the second
 * one has 8 query rows, or their weights.  So up to 8 query heads that share a KV head, most models'
 * number, have one mma for 16 keys; more have two (R). */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_DECODE_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_DECODE_CUH

#include <cuda_fp8.h>

#include "backend/cuda/attn/attn_mma.cuh"

enum {
    DECODE_ROWS = 16,
    DECODE_OWN = ML_KTILE / ATTN_WARPS, /* keys of a tile whose scores a warp computes */
    DECODE_LD = ML_KTILE + 8            /* of scores */
};

/* Online-softmax state of a lane's R rows, lane / 4 and the one 8 further; R is 1 for up to 8. */
template <int R> struct decode_state {
    float m[R], l[R];
    float keep[R]; /* what a row's sums are multiplied by before a tile is added */
    float to_log2;
};

template <int R>
__device__ static inline decode_state<R> decode_open(const attn_call<bf16> &c) {
    decode_state<R> x = {};

    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
#pragma unroll
    for (int r = 0; r < R; r++)
        x.m[r] = -INFINITY;
    return x;
}

__device__ static inline void decode_cap(float (&s)[8][2], const attn_call<bf16> &c) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            s[j][k] = c.softcap * ml_tanh(s[j][k] * c.scale / c.softcap);
}

/* Masks a row's scores of the tile that begins at key `tile`: those of keys outside lo .. hi. */
__device__ static inline void decode_mask(float (&s)[8][2], int tile, int lo, int hi) {
    int lane = (int)threadIdx.x % 32;

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
}

/* The largest of a row's scores and of `top`. */
__device__ static inline float decode_top(const float (&s)[8][2], float top) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            top = fmaxf(top, s[j][k]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

/* What a row's sums are multiplied by when its maximum m becomes `top`: exactly 1 where it stays. */
__device__ static inline float decode_keep(float m, float top, float to_log2) {
    return top == m ? 1.0f : ml_exp2((m - top) * to_log2);
}

/* A row's scores become weights; returns the lane's part of their sum. */
__device__ static inline float decode_weigh(float (&s)[8][2], float top, float to_log2) {
    float shift = top == -INFINITY ? 0.0f : top * to_log2, sum = 0.0f;

#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            s[j][k] = ml_exp2(fmaf(s[j][k], to_log2, -shift));
            sum += s[j][k];
        }
    return sum;
}

/* Online softmax over a tile, for one of the lane's rows: scores become weights. */
template <int R>
__device__ static inline void decode_fold_row(decode_state<R> &x, float (&s)[8][2], int r,
                                              int tile, int lo, int hi,
                                              const attn_call<bf16> &c) {
    float top;

    if (c.softcap != 0.0f)
        decode_cap(s, c);
    decode_mask(s, tile, lo, hi);
    top = decode_top(s, x.m[r]);
    x.keep[r] = decode_keep(x.m[r], top, x.to_log2);
    x.m[r] = top;
    x.l[r] *= x.keep[r];
    x.l[r] += decode_weigh(s, top, x.to_log2);
}

/* A row's scores of a tile, which begin at `scores`. */
__device__ static inline void decode_get_scores(float (&s)[8][2], const float *scores,
                                                int r) {
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 v = *(const float2 *)(scores + (lane / 4 + 8 * r) * DECODE_LD + j * 8 +
                                     lane % 4 * 2);
        s[j][0] = v.x;
        s[j][1] = v.y;
    }
}

/* Weights P of a tile: of the keys 16 k + lane % 4 * 2 and the next, and of those 8 further. */
template <int R>
__device__ static inline void decode_fold(decode_state<R> &x, uint32_t (&w)[R][4][2],
                                          const float *scores, int tile, int lo, int hi,
                                          const attn_call<bf16> &c) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        float s[8][2];
        decode_get_scores(s, scores, r);
        decode_fold_row<R>(x, s, r, tile, lo, hi, c);
#pragma unroll
        for (int j = 0; j < 8; j++)
            w[r][j / 2][j % 2] = ml_pack2(s[j][0], s[j][1]);
    }
}

/* Second operands of the queries. */
template <int D, int R>
__device__ static inline void decode_queries(uint32_t (&q)[D / 16][R][2],
                                             const bf16 *rows) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        attn_right<D>(b, rows, 0, k * 16);
#pragma unroll
        for (int r = 0; r < R; r++) {
            q[k][r][0] = b[2 * r];
            q[k][r][1] = b[2 * r + 1];
        }
    }
}

/* First operand of 16 columns of 16 keys' values, transposed; `row` is the lane's address for ldmatrix. */
__device__ static inline void decode_load_columns(uint32_t (&a)[4], const bf16 *row) {
    uint32_t b[4]; /* of 16 keys of 8 columns, then of the next 8 */

    ml_ldmatrix4_trans(b, row);
    a[0] = b[0];
    a[1] = b[2];
    a[2] = b[1];
    a[3] = b[3];
}

/* acc += values times weights.  a: first operands of the warp's columns of a tile's values. */
template <int R, int M>
__device__ static inline void decode_add_values(float (&acc)[R][M][4],
                                                const uint32_t (&w)[R][4][2],
                                                const uint32_t (&a)[4][M][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < M; j++)
#pragma unroll
            for (int r = 0; r < R; r++)
                ml_mma(acc[r][j], a[k][j], w[r][k][0], w[r][k][1]);
}

/* Scores of 16 keys to shared memory, from the place of the first one on, for all warps to read. */
template <int R>
__device__ static inline void decode_put_scores(float *to, const float (&s)[R][4]) {
    int lane = (int)threadIdx.x % 32;
    float *at = to + lane % 4 * 2 * DECODE_LD + lane / 4;

#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[(8 * r + i % 2) * DECODE_LD + i / 2 * 8] = s[r][i];
}

/* Of a number that the lanes of row lane / 4 have: that of an accumulator's row, lane % 4 * 2 + i. */
__device__ static inline float decode_of_row(float x, int i) {
    return __shfl_sync(0xffffffffu, x, ((int)threadIdx.x % 4 * 2 + i) * 4);
}

/* Before a tile is added.  acc[r][j] has rows 8 r + lane % 4 * 2 and the next of a column, then of
 * another one, among the warp's j-th 16 columns. */
template <int R, int M>
__device__ static inline void decode_rescale(float (&acc)[R][M][4],
                                             const decode_state<R> &x) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        float keep[2] = { decode_of_row(x.keep[r], 0), decode_of_row(x.keep[r], 1) };
#pragma unroll
        for (int j = 0; j < M; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[r][j][i] *= keep[i % 2];
    }
}

/* After the last tile: the row's maximum and sum, with its sink, and what its sums are multiplied
 * by for that. */
struct decode_end {
    float m, l, keep;
};

template <int R>
__device__ static inline decode_end decode_close(const decode_state<R> &x, int r,
                                                 const attn_call<bf16> &c, int head) {
    int row = (int)threadIdx.x % 32 / 4 + 8 * r;
    decode_end end = { c.softcap != 0.0f ? x.m[r] : x.m[r] * c.scale, x.l[r], 1.0f };

    end.l += __shfl_xor_sync(0xffffffffu, end.l, 1);
    end.l += __shfl_xor_sync(0xffffffffu, end.l, 2);
    if (c.sink && row < c.group)
        end.keep = attn_add_sink(c.sink[head * c.group + row], end.m, end.l);
    return end;
}

/* Both columns of a lane in 16: adjacent ones, or those 8 apart. */
template <bool ADJACENT>
__device__ static inline void decode_put_columns(bf16 *row, int d, int col, float first,
                                                 float second) {
    int lane = (int)threadIdx.x % 32;

    if (ADJACENT) {
        attn_put2(row, d, col + lane / 4 * 2, first, second, false);
        return;
    }
    if (col + lane / 4 < d)
        row[col + lane / 4] = ml_as<bf16>(first);
    if (col + lane / 4 + 8 < d)
        row[col + lane / 4 + 8] = ml_as<bf16>(second);
}

/* Both columns' FP8 codes. */
template <bool ADJACENT>
__device__ static inline void decode_put_codes(unsigned char *row, int col, float first,
                                               float second) {
    int lane = (int)threadIdx.x % 32;
    __nv_fp8x2_storage_t two =
        __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);

    if (ADJACENT) {
        *(__nv_fp8x2_storage_t *)(row + col + lane / 4 * 2) = two;
        return;
    }
    row[col + lane / 4] = (unsigned char)two;
    row[col + lane / 4 + 8] = (unsigned char)(two >> 8);
}

/* The output as FP8 codes: a head of 128 numbers is a group.  All warps of the block call it; most: of the
 * warps' columns of each row, in shared memory. */
template <int R, int M, bool ADJACENT>
__device__ static inline void
decode_put_coded_rows(const decode_state<R> &x, const float (&acc)[R][M][4],
                      const attn_call<bf16> &c, int seq, int head,
                      float (&most)[ATTN_WARPS][R * 8]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float v[R][2][2 * M];

#pragma unroll
    for (int r = 0; r < R; r++) {
        decode_end end = decode_close<R>(x, r, c, head);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float keep = decode_of_row(end.keep, i), l = decode_of_row(end.l, i),
                  top = 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * M; j++) {
                v[r][i][j] = ml_f32(ml_as<bf16>(acc[r][j / 2][j % 2 * 2 + i] * keep / l));
                top = fmaxf(fabsf(v[r][i][j]), top);
            }
#pragma unroll
            for (int w = 4; w < 32; w <<= 1)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, w));
            if (lane < 4)
                most[warp][8 * r + lane * 2 + i] = top;
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = 8 * r + lane % 4 * 2 + i, group = head * c.group + row;
            float top = 0.0f, scale, inverse;
            for (int w = 0; w < ATTN_WARPS; w++)
                top = fmaxf(top, most[w][row]);
            scale = ml_fp8_scale(top);
            inverse = 1.0f / scale;
            if (row >= c.group)
                continue;
            if (warp == 0 && lane < 4)
                c.codes.scale[group * c.codes.rows + seq] = scale;
#pragma unroll
            for (int j = 0; j < M; j++)
                decode_put_codes<ADJACENT>(c.codes.code + seq * c.codes.width +
                                               group * ML_FP8_GROUP,
                                           (warp * M + j) * 16, v[r][i][2 * j] * inverse,
                                           v[r][i][2 * j + 1] * inverse);
        }
}

/* The output, if it is wanted, and the rows' statistics. */
template <int R, int M, bool ADJACENT>
__device__ static inline void decode_put_rows(const decode_state<R> &x,
                                              const float (&acc)[R][M][4],
                                              const attn_call<bf16> &c, int seq, int head) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t first = (int64_t)seq * c.n_head + head * c.group;

#pragma unroll
    for (int r = 0; r < R; r++) {
        decode_end end = decode_close<R>(x, r, c, head);
        int own = lane / 4 + 8 * r;
        if (warp == 0 && lane % 4 == 0 && own < c.group) {
            c.stat[2 * (first + own)] = end.m;
            c.stat[2 * (first + own) + 1] = end.l;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float keep = decode_of_row(end.keep, i), l = decode_of_row(end.l, i);
            int row = 8 * r + lane % 4 * 2 + i;
#pragma unroll
            for (int j = 0; j < M && row < c.group && c.o; j++)
                decode_put_columns<ADJACENT>(c.o + (first + row) * c.d, c.d,
                                             (warp * M + j) * 16, acc[r][j][i] * keep / l,
                                             acc[r][j][2 + i] * keep / l);
        }
    }
}

#endif
