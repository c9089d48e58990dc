/* attn_fold.cuh - the online softmax of attention, and the epilogue of forward.
 *
 * A warp has 16 rows.  Whatever other rows are in the tile, and whether mma or wgmma
 * computes the scores, the same four lanes take a row's sums in the same order, over
 * tiles of 64 keys.  s[j][k] is number k of m16n8 accumulator j; the map is in mma.cuh. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_FOLD_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_FOLD_CUH

#include "backend/cuda/attn/attn_mma.cuh"

/* Online-softmax state of a lane's two rows: m is the running max of scores before
 * scaling, l this lane's part of the running sum. */
struct attn_softmax {
    float m[2], l[2];
    float to_log2; /* scores times this are exponents of 2 */
};

/* The keys that rows attend to: of a lane's two rows, and of the warp's 16. */
struct attn_limits {
    int pos[2];                /* -1: no such row */
    int first[2];              /* the first key attended to */
    int least_pos, last_first; /* a tile of keys within these needs no mask */
    int most_pos;
};

__device__ static inline void attn_cap(float (&s)[8][4], const attn_call<bf16> &c) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[j][k] = c.softcap * ml_tanh(s[j][k] * c.scale / c.softcap);
}

/* Masks the scores with keys tile .. tile + 63 that a row does not attend to. */
__device__ static inline void attn_hide(float (&s)[8][4], const attn_limits &lim,
                                        int tile) {
    if (tile + ML_KTILE - 1 <= lim.least_pos && tile >= lim.last_first)
        return;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int key = tile + j * 8 + (int)threadIdx.x % 4 * 2 + k % 2;
            if (key > lim.pos[k / 2] || key < lim.first[k / 2])
                s[j][k] = -INFINITY;
        }
}

/* One step of online softmax: scores s with keys tile .. tile + 63 become unnormalized
 * weights P.  The caller multiplies its accumulators by `keep`. */
__device__ static inline void attn_fold(attn_softmax &x, float (&s)[8][4], float (&keep)[2],
                                        const attn_limits &lim, int tile) {
    float top[2] = { x.m[0], x.m[1] }, shift[2], sum[2] = { 0.0f, 0.0f };

    attn_hide(s, lim, tile);
#pragma unroll
    for (int r = 0; r < 2; r++) { /* of any order; short chains take less time */
        float part[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            part[j] = fmaxf(fmaxf(s[j][2 * r], s[j][2 * r + 1]),
                            fmaxf(s[j + 4][2 * r], s[j + 4][2 * r + 1]));
        top[r] = fmaxf(top[r], fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3])));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        shift[r] = top[r] == -INFINITY ? 0.0f : top[r] * x.to_log2;
        /* Exactly 1 where the max stays: a fully masked tile changes no bit. */
        keep[r] = top[r] == x.m[r] ? 1.0f : ml_exp2((x.m[r] - top[r]) * x.to_log2);
        x.m[r] = top[r];
        x.l[r] *= keep[r];
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            s[j][k] = ml_exp2(fmaf(s[j][k], x.to_log2, -shift[k / 2]));
            sum[k / 2] += s[j][k];
        }
    x.l[0] += sum[0];
    x.l[1] += sum[1];
}

template <int D>
__device__ static inline void attn_rescale(float (&acc)[D / 8][4], const float (&keep)[2]) {
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[j][k] *= keep[k / 2];
}

template <int D>
__device__ static inline void
attn_put_rows(const attn_softmax &x, const float (&acc)[D / 8][4], const attn_call<bf16> &c,
              const ml_piece &p, int head, int row, int n_row) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at_row = row + lane / 4 + 8 * r;
        int64_t at = attn_head_at(c, p.first_row, head, at_row);
        float m = c.softcap != 0.0f ? x.m[r] : x.m[r] * c.scale, l = x.l[r], keep = 1.0f;
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (at_row >= n_row)
            continue;
        if (c.sink)
            keep = attn_add_sink(c.sink[at % c.n_head], m, l);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            attn_put2(c.o + at * c.d, c.d, j * 8 + lane % 4 * 2, acc[j][2 * r] * keep / l,
                      acc[j][2 * r + 1] * keep / l, false);
        if (lane % 4 == 0) {
            c.stat[2 * at] = m;
            c.stat[2 * at + 1] = l;
        }
    }
}

__device__ static inline attn_limits attn_limits_of(const attn_call<bf16> &c, int first_row,
                                                    int row, int n_row) {
    int lane = (int)threadIdx.x % 32;
    int last = row + 15 < n_row ? row + 15 : n_row - 1;
    attn_limits lim;

    for (int r = 0; r < 2; r++) {
        int at = row + lane / 4 + 8 * r;
        lim.pos[r] = at < n_row ? c.pos[first_row + attn_token(c, at)] : -1;
        lim.first[r] = attn_first_key(c, lim.pos[r]);
    }
    lim.most_pos = row < n_row ? c.pos[first_row + attn_token(c, last)] : -1;
    lim.least_pos = row + 15 < n_row ? c.pos[first_row + attn_token(c, row)] : -1;
    lim.last_first = attn_first_key(c, lim.most_pos);
    return lim;
}

#endif
