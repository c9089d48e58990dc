/* gemm_fp8_lt.cuh - an FP8 product as cuBLASLt is told of it. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_FP8_LT_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_FP8_LT_CUH

#include <cublasLt.h>
#include <stdint.h>

/* Column-major: c (p x q) = a' (p x k) b (k x q), of codes with k first.  a has ld bytes from a column to the next
 * and scales of blocks of 128 x 128, b scales of groups of 128. */
typedef struct ml_fp8_lt_product {
    int64_t p, q, k, ld;
    const float *a_scale, *b_scale;
    bool e5m2; /* b; else e4m3, which a has */
    bool f32;  /* c; else bf16 */
} ml_fp8_lt_product;

typedef struct ml_fp8_lt {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} ml_fp8_lt;

static inline void ml_fp8_lt_set(ml_fp8_lt *t, cublasLtMatmulDescAttributes_t which,
                                 const void *value, size_t size) {
    cublasLtMatmulDescSetAttribute(&t->desc, which, value, size);
}

static inline void ml_fp8_lt_init(ml_fp8_lt *t, const ml_fp8_lt_product *g) {
    const int32_t transposed = CUBLAS_OP_T;
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t groups = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const uint64_t p = (uint64_t)g->p, q = (uint64_t)g->q, k = (uint64_t)g->k;

    cublasLtMatmulDescInit(&t->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    ml_fp8_lt_set(t, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    ml_fp8_lt_set(t, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &blocks, sizeof blocks);
    ml_fp8_lt_set(t, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &groups, sizeof groups);
    ml_fp8_lt_set(t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->a_scale, sizeof g->a_scale);
    ml_fp8_lt_set(t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->b_scale, sizeof g->b_scale);
    cublasLtMatrixLayoutInit(&t->a, CUDA_R_8F_E4M3, k, p, g->ld);
    cublasLtMatrixLayoutInit(&t->b, g->e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, k, q, g->k);
    cublasLtMatrixLayoutInit(&t->c, g->f32 ? CUDA_R_32F : CUDA_R_16BF, p, q, g->p);
}

#endif
