/* fuse.cuh - op fusion, and the parts of ops that fused calls use. */
#ifndef ML_BACKEND_CUDA_FUSE_CUH
#define ML_BACKEND_CUDA_FUSE_CUH

#include "backend/cuda/common.cuh"

/* ml_ops.together */
int ml_cuda_together(ml_stream *s, const ml_op_call *call, int n);

/* ml_ops.together_back */
int ml_cuda_together_back(ml_stream *s, const ml_op_call *call, int n);

/* norm.cu: ADD, then RMSNORM of the sum. */
void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm);

/* norm.cu: backward of RMSNORM and of the RoPE of its whole outputs (rotate-half), bf16 heads of
 * ML_NORM_NARROW numbers.  RoPE's gradient is not written. */
void ml_cuda_norm_rope_back(ml_cuda_stream *s, const ml_op_args *norm,
                            const ml_op_args *rope);

#endif
