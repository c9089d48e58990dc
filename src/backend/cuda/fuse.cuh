/* fuse.cuh - op fusion, and the parts of ops that fused calls use. */
#ifndef ML_BACKEND_CUDA_FUSE_CUH
#define ML_BACKEND_CUDA_FUSE_CUH

#include "backend/cuda/fp8/fp8_out.cuh"

/* ml_ops.together */
int ml_cuda_together(ml_stream *s, const ml_op_call *call, int n);

/* ml_ops.together_back */
int ml_cuda_together_back(ml_stream *s, const ml_op_call *call, int n);

/* The outputs of these may be written as FP8 codes, too: of widths that are multiples of 128, in bf16.  out[0].data
 * NULL: as codes only. */

/* norm.cu: RMSNORM; ADD, then RMSNORM of the sum. */
void ml_cuda_norm(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes);
void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm,
                      const ml_fp8_out &codes);
/* elementwise.cu: GLU. */
void ml_cuda_glu(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes);

/* norm.cu: backward of RMSNORM and of the RoPE of its whole outputs (rotate-half), bf16 heads of
 * ML_NORM_NARROW numbers.  RoPE's gradient is not written. */
void ml_cuda_norm_rope_back(ml_cuda_stream *s, const ml_op_args *norm,
                            const ml_op_args *rope);

#endif
