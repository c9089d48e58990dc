/* qk_norm_rope_kv.cuh - QK norm, RoPE and the write to the KV cache, as one kernel. */
#ifndef ML_BACKEND_CUDA_ATTN_QK_NORM_ROPE_KV_CUH
#define ML_BACKEND_CUDA_ATTN_QK_NORM_ROPE_KV_CUH

#include "backend/cuda/attn/attn.cuh"

/* Of q, or of k; NULL: no such step.  rotated: after RoPE, the input of attention. */
typedef struct ml_qk_norm_rope_side {
    const bf16 *x;     /* [n_token, heads * d] */
    int64_t ld;        /* row stride of x */
    const float *norm; /* [d] */
    bf16 *normed, *rotated;
    float eps;
    bool plus_one;
} ml_qk_norm_rope_side;

/* RMSNorm of each head, RoPE of whole heads (rotate-half), and the writes of keys and
 * values to KV pages.  bf16 heads of up to 128 numbers, a multiple of 16. */
typedef struct ml_qk_norm_rope {
    ml_qk_norm_rope_side q, k;
    int64_t v_ld;    /* row stride of to.v */
    const float *cs; /* [n_token, 2, d / 2] */
    attn_call<bf16> to;
} ml_qk_norm_rope;

void ml_qk_norm_rope_run(ml_cuda_stream *s, const ml_qk_norm_rope *h);

/* attn_decode_fused.cu: the same and ATTN, of few sequences that decode, with the same bits.  It is launched
 * right after a kernel that calls ml_grid_release after ml_grid_wait, and reads the KV cache and `cs` before
 * that kernel has ended.  No output is where a block reads q, k or v.  Hopper, whose shared memory it fills. */
bool ml_attn_decode_fused_supports(const ml_cuda_stream *s, const ml_qk_norm_rope *h);
void ml_attn_decode_fused(ml_cuda_stream *s, const ml_qk_norm_rope *h);

#endif
