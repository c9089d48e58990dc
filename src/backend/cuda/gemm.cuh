/* gemm.cuh - products of matrices.
 *
 *     c[m, n] = sum over k of a(m, k) b(n, k)        (or c + that, where `add` is)
 *
 * Forward products must not let a row know its neighbours.  For bf16 every output of our
 * tensor-core kernel is one chain of 16-deep steps over ascending k, whatever the tile, so that
 * all its variants give the same bits; cuBLASLt takes over for many rows only after it gave the
 * same bits for this (N, K) on this device.  Products of backward need to be repeatable only:
 * there cuBLASLt has them all, without splitting k.  f32, and shapes the tensor cores do not
 * take, go to a plain kernel: one FMA chain over ascending k. */
#ifndef ML_BACKEND_CUDA_GEMM_CUH
#define ML_BACKEND_CUDA_GEMM_CUH

#include "backend/cuda/common.cuh"

typedef struct ml_gemm {
    int64_t m, n, k;
    const void *a, *b;          /* of `in` */
    int64_t a_m, a_k, b_n, b_k; /* strides; of each operand one is 1 */
    void *c;                    /* [m, n] of `out` */
    int64_t ldc;
    ml_dtype in, out;
    bool add; /* out f32 only */
} ml_gemm;

/* The strides of matrices without gaps: a is [m, k], or [k, m] where turned; b [n, k] or [k, n]. */
static inline ml_gemm ml_gemm_shape(int64_t m, int64_t n, int64_t k, bool a_turned,
                                    bool b_turned) {
    ml_gemm g = {};

    g.m = m;
    g.n = n;
    g.k = k;
    g.a_m = a_turned ? 1 : k;
    g.a_k = a_turned ? m : 1;
    g.b_n = b_turned ? 1 : k;
    g.b_k = b_turned ? n : 1;
    g.ldc = n;
    return g;
}

/* y [m, n] = x [m, k] w [n, k]: rows independent of each other. */
void ml_gemm_rows(ml_cuda_stream *s, const ml_gemm *g);
/* The products of backward. */
void ml_gemm_any(ml_cuda_stream *s, const ml_gemm *g);

/* Compares and remembers which way products with this (n, k) go, up to about `rows` rows; `out`
 * as in ml_gemm. */
ml_status ml_gemm_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k, ml_dtype in,
                      ml_dtype out, ml_err *err);

ml_status ml_gemm_open(ml_cuda_stream *s, ml_err *err);
void ml_gemm_close(ml_cuda_stream *s);

/* gemm_mma.cu: our tensor-core kernel; bf16, k a multiple of 8, a and b aligned to 16. */
bool ml_gemm_mma_takes(const ml_gemm *g);
void ml_gemm_mma(ml_cuda_stream *s, const ml_gemm *g);
/* gemm_plain.cu: everything, slowly. */
void ml_gemm_plain(ml_cuda_stream *s, const ml_gemm *g);
/* Fails where this object has no code for the card. */
cudaError_t ml_gemm_probe(cudaFuncAttributes *out);

#endif
