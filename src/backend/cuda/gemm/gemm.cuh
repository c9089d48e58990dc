/* gemm.cuh - matrix products (GEMM).
 *
 *     c[m, n] = sum over k of a(m, k) b(n, k)        (c + that, with `add`)
 *
 * Forward GEMMs are batch-invariant: a row's bits do not depend on the other rows.  For
 * bf16 every output of our tensor-core kernel is one chain of k16 steps over ascending
 * k, whatever the tile, so that all its variants give the same bits; cuBLASLt is used
 * for many rows only after it gave the same bits for this (N, K) on this device.
 * Backward GEMMs only need to be deterministic: cuBLASLt runs all of them, with split-K
 * where its partial sums are stored and added in a second step.  f32, and shapes that the tensor-core kernel does not take, go to a plain
 * kernel: one FMA chain over ascending k. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_CUH

#include "backend/cuda/common.cuh"

typedef struct ml_gemm {
    int64_t m, n, k;
    const void *a, *b;          /* of type `in` */
    int64_t a_m, a_k, b_n, b_k; /* strides; of each operand one is 1 */
    void *c;                    /* [m, n] of type `out` */
    int64_t ldc;
    ml_dtype in, out;
    bool add; /* backward only */
} ml_gemm;

/* Strides of contiguous matrices: a is [m, k], or [k, m] if a_transposed; b is [n, k], or
 * [k, n] if b_transposed. */
static inline ml_gemm ml_gemm_shape(int64_t m, int64_t n, int64_t k, bool a_transposed,
                                    bool b_transposed) {
    ml_gemm g = {};

    g.m = m;
    g.n = n;
    g.k = k;
    g.a_m = a_transposed ? 1 : k;
    g.a_k = a_transposed ? m : 1;
    g.b_n = b_transposed ? 1 : k;
    g.b_k = b_transposed ? n : 1;
    g.ldc = n;
    return g;
}

/* Forward: y [m, n] = x [m, k] w [n, k]', batch-invariant. */
void ml_gemm_rows(ml_cuda_stream *s, const ml_gemm *g);
/* Backward. */
void ml_gemm_any(ml_cuda_stream *s, const ml_gemm *g);

/* Autotunes forward GEMMs with this (n, k) and up to about `rows` rows, and caches the
 * algorithms; `out` as in ml_gemm. */
ml_status ml_gemm_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k, ml_dtype in,
                      ml_dtype out, ml_err *err);

/* cuBLASLt, for other files that call it: its handle, the preferences of forward GEMMs (no split-K) and of
 * backward GEMMs, and the workspace. */
typedef struct ml_gemm_lt {
    void *handle, *forward, *backward, *workspace;
    size_t bytes;
} ml_gemm_lt;

ml_gemm_lt ml_gemm_lt_of(ml_cuda_stream *s);

ml_status ml_gemm_open(ml_cuda_stream *s, ml_err *err);
void ml_gemm_close(ml_cuda_stream *s);

/* gemm_mma.cu: our tensor-core kernel; bf16, k a multiple of 8, a and b aligned to 16. */
bool ml_gemm_mma_takes(const ml_gemm *g);
void ml_gemm_mma(ml_cuda_stream *s, const ml_gemm *g);
/* gemm_plain.cu: all types and shapes; slow. */
void ml_gemm_plain(ml_cuda_stream *s, const ml_gemm *g);
/* Fails if this object has no code for the GPU. */
cudaError_t ml_gemm_probe(cudaFuncAttributes *out);

#endif
