/* fuse.cuh - op fusion, and the parts of ops that fused calls use. */
#ifndef ML_BACKEND_CUDA_FUSE_CUH
#define ML_BACKEND_CUDA_FUSE_CUH

#include "backend/cuda/common.cuh"

/* ml_ops.together */
int ml_cuda_together(ml_stream *s, const ml_op_call *call, int n);

/* norm.cu: ADD, then RMSNORM of the sum. */
void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm);

#endif
