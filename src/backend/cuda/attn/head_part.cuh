/* head_part.cuh - QK norm and RoPE of a head in the registers of a team of 8 threads.
 *
 * A thread has a pack of 8 numbers and the one half a head behind it, with which RoPE pairs it.
 * The norm's sum has the order of norm.cu, and every number is rounded after the norm and after
 * RoPE, as the single ops do. */
#ifndef ML_BACKEND_CUDA_ATTN_HEAD_PART_CUH
#define ML_BACKEND_CUDA_ATTN_HEAD_PART_CUH

#include "backend/cuda/attn/qk_norm_rope_kv.cuh"
#include "backend/cuda/stored.cuh"

enum { HEAD_TEAM = 8, HEAD_PACK = 8 };

/* A thread's numbers of a head: e .. e + 7, and those half a head behind them. */
struct head_part {
    ml_stored<bf16, HEAD_PACK> low, high;

    __device__ void clear(void) {
        low.clear();
        high.clear();
    }
    __device__ void load(const bf16 *from, int half) {
        low.load(from);
        high.load(from + half);
    }
    __device__ void store(bf16 *to, int half) const {
        low.store(to);
        high.store(to + half);
    }
    __device__ void get(float (&l)[HEAD_PACK], float (&h)[HEAD_PACK]) const {
        low.get(l);
        high.get(h);
    }
    __device__ void set(const float (&l)[HEAD_PACK], const float (&h)[HEAD_PACK]) {
        low.set(l);
        high.set(h);
    }
};

/* A head of a token, of q, k or v: the heads of q come first, then those of k, then those of v. */
struct head_of {
    bool is_q, is_v, there; /* there: the thread has numbers of it */
    int index;              /* among those of its kind */

    __device__ head_of(const attn_call<bf16> &c, int head, int e)
        : is_q(head < c.n_head), is_v(head >= c.n_head + c.n_kv),
          there(head < c.n_head + 2 * c.n_kv && e < c.d / 2),
          index(is_q ? head : head - c.n_head - (is_v ? c.n_kv : 0)) {}
};

/* The thread's weights of the norm. */
struct head_weights {
    float low[HEAD_PACK] = {}, high[HEAD_PACK] = {};

    __device__ head_weights(const ml_qk_norm_rope &h, const head_of &o, int e) {
        const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
        if (!s.norm || !o.there || o.is_v)
            return;
        ml_load(low, s.norm + e);
        ml_load(high, s.norm + h.to.d / 2 + e);
    }
};

/* The cosines and sines of a thread's pairs.  Loads pass the L1 cache: a kernel that reads the table before its
 * ml_grid_wait may find lines of the step before there. */
struct head_angles {
    float cosine[HEAD_PACK], sine[HEAD_PACK];

    __device__ void load(const float *from, int half) {
#pragma unroll
        for (int j = 0; j < HEAD_PACK; j += 4) {
            *(float4 *)(cosine + j) = __ldcg((const float4 *)(from + j));
            *(float4 *)(sine + j) = __ldcg((const float4 *)(from + half + j));
        }
    }
};

/* Over a head, of the sums of each pack, in the order of norm.cu: a tree over 16 lanes, of which lane
 * i has pack i.  Of heads of less than 128 numbers, lane i + 8 is not this thread's second pack. */
__device__ static inline float head_sum(float low, float high, int packs) {
    int thread = (int)threadIdx.x % HEAD_TEAM;

    if (packs != HEAD_TEAM)
        high =
            __shfl_sync(0xffffffffu, high, (thread - packs) & (HEAD_TEAM - 1), HEAD_TEAM);
    low += high;
#pragma unroll
    for (int i = HEAD_TEAM / 2; i; i >>= 1)
        low += __shfl_xor_sync(0xffffffffu, low, i);
    return low;
}

__device__ static inline float head_squares(const float (&x)[HEAD_PACK]) {
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < HEAD_PACK; j++)
        sum = fmaf(x[j], x[j], sum);
    return sum;
}

__device__ static inline void head_norm(head_part &x, const head_weights &w,
                                        const ml_qk_norm_rope_side &s, int half) {
    float low[HEAD_PACK], high[HEAD_PACK], sum, r, more = s.plus_one ? 1.0f : 0.0f;

    x.get(low, high);
    sum = head_sum(head_squares(low), head_squares(high), half / HEAD_PACK);
    r = 1.0f / sqrtf(sum / (float)(2 * half) + s.eps);
#pragma unroll
    for (int j = 0; j < HEAD_PACK; j++) {
        low[j] = (low[j] * r) * (w.low[j] + more);
        high[j] = (high[j] * r) * (w.high[j] + more);
    }
    x.set(low, high);
}

/* RoPE (rotate-half). */
__device__ static inline void head_rope(head_part &x, const head_angles &a) {
    float low[HEAD_PACK], high[HEAD_PACK];

    x.get(low, high);
#pragma unroll
    for (int j = 0; j < HEAD_PACK; j++) {
        float l = low[j], h = high[j];
        low[j] = fmaf(l, a.cosine[j], -(h * a.sine[j]));
        high[j] = fmaf(h, a.cosine[j], l * a.sine[j]);
    }
    x.set(low, high);
}

/* Norm and RoPE of a head of q or k of a row.  All threads of a warp call it: its teams shuffle together. */
__device__ static inline void head_norm_rope(head_part &x, const ml_qk_norm_rope &h,
                                             const head_of &o, const head_weights &w,
                                             const head_angles &a, int row, int e,
                                             int half) {
    const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
    int64_t at =
        ((int64_t)row * (o.is_q ? h.to.n_head : h.to.n_kv) + o.index) * 2 * half + e;
    head_part y = x;

    if (h.k.norm)
        head_norm(y, w, s, half);
    if (!o.there || o.is_v)
        return;
    if (s.normed)
        y.store(s.normed + at, half);
    head_rope(y, a);
    y.store(s.rotated + at, half);
    x = y;
}

/* Reads the thread's part of a row's head. */
__device__ static inline void head_load(head_part &x, const ml_qk_norm_rope &h,
                                        const head_of &o, int row, int e, int half) {
    const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;

    if (o.there)
        x.load((o.is_v ? h.to.v + row * h.v_ld : s.x + row * s.ld) + o.index * 2 * half + e,
               half);
    else
        x.clear();
}

#endif
