/* heads.cuh - what happens to queries, keys and values before attention reads them, as one. */
#ifndef ML_BACKEND_CUDA_HEADS_CUH
#define ML_BACKEND_CUDA_HEADS_CUH

#include "backend/cuda/attn.cuh"

/* Of q, or of k: NULL where there is no such step.  `turned` is what attention takes. */
typedef struct ml_heads_side {
    const bf16 *x;     /* [n_token, heads * d] */
    int64_t ld;        /* from row to row of it */
    const float *norm; /* [d] */
    bf16 *normed, *turned;
    float eps;
    bool plus_one;
} ml_heads_side;

/* Norms of each head, rotation of whole heads (halves against each other), and the pages of keys
 * and values.  bf16 heads of up to 128 numbers, a multiple of 16. */
typedef struct ml_heads {
    ml_heads_side q, k;
    int64_t v_ld;    /* of to.v */
    const float *cs; /* [n_token, 2, d / 2] */
    attn_call<bf16> to;
} ml_heads;

void ml_heads_run(ml_cuda_stream *s, const ml_heads *h);

#endif
