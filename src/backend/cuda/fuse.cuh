/* fuse.cuh - ops that other files have in pieces, for calls that are done together. */
#ifndef ML_BACKEND_CUDA_FUSE_CUH
#define ML_BACKEND_CUDA_FUSE_CUH

#include "backend/cuda/attn.cuh"

/* Up to so many rows products of the same rows are one, where their weights lie together. */
enum { ML_JOINT_ROWS = 512 };

/* ml_ops.together */
int ml_cuda_together(ml_stream *s, const ml_op_call *call, int n);

/* attn.cu: ATTN, when its keys and values are in their pages already. */
attn_call<bf16> ml_attn_call(const ml_op_args *a);
void ml_cuda_attn_read(ml_cuda_stream *s, const ml_op_args *a);

/* norm.cu: RMSNORM of a sum. */
void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm);

#endif
