/* gemm_skinny.cuh - small-M GEMM for decode, fused with the ops before and after it.
 *
 * A decode step of few sequences takes the latency of its kernels, one after the other.
 * So a norm (prologue), the products that read it, and a residual add or a GLU
 * (epilogue) are one kernel.  Every number is rounded where the single ops round it,
 * and every sum has their order. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_SKINNY_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_SKINNY_CUH

#include "backend/cuda/glu.cuh"

enum { ML_SKINNY_ROWS = 16, ML_CODES_ROWS = 32, ML_SKINNY_PARTS = 3 };

typedef struct ml_skinny_gemm_part {
    const void *w;     /* [n, k] */
    const float *bias; /* [n] or NULL */
    bf16 *y;           /* [m, n]; NULL: not stored */
    int n;
} ml_skinny_gemm_part;

typedef struct ml_skinny_gemm {
    const bf16 *x; /* [m, k] */
    int m, k;
    ml_dtype weights;     /* of all parts: bf16, or quantized */
    size_t panel, scales; /* bytes of a panel of quantized weights, and of its scales */
    const float *norm;    /* prologue: [k] weights of an RMSNorm; NULL: none */
    bf16 *normed;         /* [m, k]; NULL: not stored */
    float eps;
    bool plus_one;
    ml_skinny_gemm_part part[ML_SKINNY_PARTS];
    int n_part;
    const bf16 *addend; /* epilogue: sum = y of part 0 + addend; NULL: none */
    bf16 *sum;
    bf16 *gated; /* epilogue: act(part 0) times part 1; NULL: none */
    ml_act act;
    float limit; /* of the gate */
} ml_skinny_gemm;

/* Are there kernels for this kind of weights? */
bool ml_skinny_gemm_reads(ml_dtype weights);
/* Adds a part: the product of a LINEAR, whose output is stored or not. */
void ml_skinny_gemm_add(ml_skinny_gemm *f, const ml_op_args *linear, bool stored);
/* Is there a kernel?  Up to ML_SKINNY_ROWS rows that fit the shared memory of an SM; up to ML_CODES_ROWS
 * rows, on Hopper ML_JOINT_ROWS, with quantized weights and without a norm. */
bool ml_skinny_gemm_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f);
void ml_skinny_gemm_run(ml_cuda_stream *s, const ml_skinny_gemm *f);

/* gemm_skinny_wgmma.cu: the same bits for up to 8 rows, faster, where a block's weights fit in shared memory;
 * Hopper only. */
bool ml_skinny_wgmma_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f);
void ml_skinny_wgmma_run(ml_cuda_stream *s, const ml_skinny_gemm *f);

/* ---- epilogues, of two adjacent outputs of a row ---- */

/* Rounded and stored as LINEAR does. */
__device__ static inline void ml_skinny_finish(float (&v)[2], float first, float second,
                                               const ml_skinny_gemm_part &p, int64_t at,
                                               int col) {
    v[0] = first;
    v[1] = second;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v[j] = ml_f32(ml_as<bf16>(v[j]));
        if (p.bias)
            v[j] = ml_f32(ml_as<bf16>(v[j] + p.bias[col + j]));
    }
    if (p.y)
        ml_store(p.y + at, v);
}

__device__ static inline void ml_skinny_put_gated(const ml_skinny_gemm &f,
                                                  const float (&gate)[2],
                                                  const float (&up)[2], int64_t at) {
    float v[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        ml_gate g = ml_gate_of(gate[j], up[j], f.act, f.limit);
        v[j] = g.act * g.up;
    }
    ml_store(f.gated + at, v);
}

__device__ static inline void ml_skinny_put_sum(const ml_skinny_gemm &f,
                                                const float (&y)[2],
                                                const float (&addend)[2], int64_t at) {
    float v[2] = { y[0] + addend[0], y[1] + addend[1] };
    ml_store(f.sum + at, v);
}

#endif
