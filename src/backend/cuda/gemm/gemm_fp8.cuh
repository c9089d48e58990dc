/* gemm_fp8.cuh - FP8 products of many rows by cuBLASLt, where it has the bits of our kernel. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_FP8_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_FP8_CUH

#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/gemm/gemm.cuh"

/* A weight [n, k] in row-major order, n and k multiples of 128: its codes, `ld` bytes from a row to the
 * next, and the scales of its blocks, [n / 128][k / 128]. */
typedef struct ml_fp8_rows {
    const unsigned char *code;
    int64_t ld;
    const float *scale;
} ml_fp8_rows;

/* Of the weight of a LINEAR that ml_fp8_takes: the codes are the weight's own; the scales are gathered to
 * scratch, 4 bytes for each block. */
ml_fp8_rows ml_cuda_fp8_rows(ml_cuda_stream *s, const ml_op_args *a, void *scratch);

/* Autotunes LINEARs with this (n, k) and up to about `rows` rows. */
ml_status ml_gemm_fp8_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k,
                          ml_err *err);
/* False: our kernel has to run.  Scales are gathered to the scratch memory in which a quantized weight is
 * dequantized otherwise. */
bool ml_gemm_fp8(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_gemm *g);
void ml_gemm_fp8_close(ml_cuda_stream *s);

#endif
