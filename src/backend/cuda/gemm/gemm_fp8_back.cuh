/* gemm_fp8_back.cuh - gradients of LINEAR as FP8 products (--fp8-backward). */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_FP8_BACK_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_FP8_BACK_CUH

#include "backend/cuda/gemm/gemm.cuh"

/* The gradients of the input and of the weight, those that are wanted.  False: bf16 products have to
 * compute them. */
bool ml_gemm_fp8_back(ml_cuda_stream *s, const ml_op_args *a);
/* The same of LINEARs with one input, in the order in which they run, as one product of each kind
 * (linear_joint_back.cuh). */
bool ml_gemm_fp8_back_joint(ml_cuda_stream *s, const ml_op_call *call, int n);
/* Two of them after the SwiGLU of their outputs, whose gradients it leaves as codes only. */
bool ml_gemm_fp8_back_gated(ml_cuda_stream *s, const ml_op_args *glu,
                            const ml_op_call *call);
void ml_gemm_fp8_back_close(ml_cuda_stream *s);

#endif
