/* gemm_fp8.cuh - FP8 products of many rows by cuBLASLt, where it has the bits of our kernel. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_FP8_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_FP8_CUH

#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/gemm/gemm.cuh"

/* Autotunes LINEARs with this (n, k) and up to about `rows` rows. */
ml_status ml_gemm_fp8_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k,
                          ml_err *err);
/* False: our kernel has to run.  The weight is unpacked to the scratch memory in which a quantized
 * weight is dequantized otherwise. */
bool ml_gemm_fp8(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_gemm *g);
void ml_gemm_fp8_close(ml_cuda_stream *s);

#endif
