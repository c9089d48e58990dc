/* gemm_codes.cuh - the products of gemm_skinny.cuh with quantized weights. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_CODES_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_CODES_CUH

#include "backend/cuda/gemm/gemm_skinny.cuh"

bool ml_codes_gemm_reads(ml_dtype weights);
bool ml_codes_gemm_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f);
void ml_codes_gemm_run(ml_cuda_stream *s, const ml_skinny_gemm *f);

/* gemm_codes_rows.cu: up to ML_CODES_ROWS rows, which need not fit in shared memory; without a norm. */
bool ml_codes_rows_supports(const ml_skinny_gemm *f);
void ml_codes_rows_run(ml_cuda_stream *s, const ml_skinny_gemm *f);

/* gemm_codes_wgmma.cu: any number of rows, on Hopper; without a norm. */
bool ml_codes_wgmma_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f);
void ml_codes_wgmma_run(ml_cuda_stream *s, const ml_skinny_gemm *f);
/* Experts: part 0 has the weight and the bias of the first, those of the others follow; expert i has rows
 * start[i] to start[i + 1] - 1. */
void ml_codes_wgmma_experts(ml_cuda_stream *s, const ml_skinny_gemm *f,
                            const int32_t *start, int n_expert);

#endif
