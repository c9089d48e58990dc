/* attn.cuh - shared declarations of the attention kernels.
 *
 * All are FlashAttention: an online softmax over tiles of keys, and a backward that
 * recomputes the scores from the logsumexp (LSE) of each row.  Keys and values are read
 * from KV pages (kpage [page][Hk][16][d], vpage [page][Hk][16][dv]) in tiles of
 * ML_KTILE keys at absolute positions.  The query heads that share a KV head (GQA) are
 * adjacent rows: row r of a sequence is token r / group, head r % group of the KV head.
 * So decode, prefill in chunks of any size and training have one order of sums. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_CUH

#include "backend/cuda/common.cuh"

template <class T> struct attn_call {
    const T *q, *k, *v; /* of the rows of the batch */
    T *o, *kpage, *vpage;
    float *stat; /* [n_token, n_head, 2] row max m, and sum of exp(score - m) */
    const int32_t *pos, *seq_start, *page_start, *page;
    int n_token, n_seq;
    int n_head, n_kv, group, d, dv, window;
    uint32_t group_mul; /* 2^32 / group, rounded up: see attn_token */
    float scale, softcap;
    /* backward */
    const T *dout;
    float *shift; /* [n_token, n_head] LSE in log2 units: P = 2^(score log2(e) - shift) */
    float *delta; /* [n_token, n_head] rowsum(dO * O) */
    T *dq, *dk, *dv_out;
    bool add_q, add_k, add_v;
};

/* The sequence of a row of the batch. */
__device__ static inline int attn_seq_of(const int32_t *seq_start, int n_seq, int row) {
    int lo = 0, hi = n_seq;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (seq_start[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* row / group without a division; rows are far below 2^32 / group. */
template <class T> __device__ static inline int attn_token(const attn_call<T> &c, int row) {
    return c.group == 1 ? row : (int)__umulhi((uint32_t)row, c.group_mul);
}

/* Index in [n_token, n_head] of a row of a KV head; first_token: of its sequence. */
template <class T>
__device__ static inline int64_t attn_head_at(const attn_call<T> &c, int first_token,
                                              int head, int row) {
    int token = attn_token(c, row);
    return (int64_t)(first_token + token) * c.n_head + head * c.group +
           (row - token * c.group);
}

/* Address of a key, or of its value, in its KV page. */
template <class T>
__device__ static inline const T *attn_key(const attn_call<T> &c, const int32_t *page,
                                           int head, int key) {
    int64_t slot = ((int64_t)page[key / ML_PAGE] * c.n_kv + head) * ML_PAGE + key % ML_PAGE;
    return c.kpage + slot * c.d;
}

template <class T>
__device__ static inline const T *attn_value(const attn_call<T> &c, const int32_t *page,
                                             int head, int key) {
    int64_t slot = ((int64_t)page[key / ML_PAGE] * c.n_kv + head) * ML_PAGE + key % ML_PAGE;
    return c.vpage + slot * c.dv;
}

/* The first key that a row at `pos` attends to (sliding window). */
template <class T>
__device__ static inline int attn_first_key(const attn_call<T> &c, int pos) {
    return c.window && pos >= c.window ? pos - c.window + 1 : 0;
}

/* Derivative of softcap, from a capped score. */
__device__ static inline float attn_cap_slope(float s, float cap) {
    float t = s / cap;
    return fmaf(-t, t, 1.0f);
}

/* attn.cu: ATTN, when its keys and values are in their KV pages already; for fused calls. */
attn_call<bf16> ml_attn_call(const ml_op_args *a);
void ml_cuda_attn_read(ml_cuda_stream *s, const ml_op_args *a);

/* attn_mma.cu: bf16 heads of up to 128, in multiples of 8. */
void ml_attn_mma(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_wgmma.cu: the same bits, faster for many rows; Hopper only. */
void ml_attn_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_wgmma_back.cu for Hopper, attn_mma_back.cu for other GPUs. */
void ml_attn_mma_back(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_decode.cu: the same bits, for decode: one row per sequence. */
bool ml_attn_decode_supports(const attn_call<bf16> &c);
void ml_attn_decode(ml_cuda_stream *s, const attn_call<bf16> &c);
/* attn_plain.cu: all types, heads of up to 256; slow. */
template <class T> void ml_attn_plain(ml_cuda_stream *s, const attn_call<T> &c);
template <class T> void ml_attn_plain_back(ml_cuda_stream *s, const attn_call<T> &c);

#endif
