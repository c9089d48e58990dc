/* linear_f32_out.cuh - LINEAR with f32 weights over bf16 rows. */
#ifndef ML_BACKEND_CUDA_GEMM_LINEAR_F32_OUT_CUH
#define ML_BACKEND_CUDA_GEMM_LINEAR_F32_OUT_CUH

#include "backend/cuda/common.cuh"

/* Outputs in f32, or in bf16. */
void ml_cuda_linear_f32_out_forward(ml_stream *s, const ml_op_args *a);
/* Gradients of input and weights; linear.cu computes that of the bias. */
void ml_cuda_linear_f32_out_backward(ml_stream *s, const ml_op_args *a);

#endif
