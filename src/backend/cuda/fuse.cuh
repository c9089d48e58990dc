/* fuse.cuh - op fusion, and the parts of ops that fused calls use. */
#ifndef ML_BACKEND_CUDA_FUSE_CUH
#define ML_BACKEND_CUDA_FUSE_CUH

#include "backend/cuda/attn.cuh"

/* Up to this many rows, LINEARs of one input with adjacent weights run as one GEMM. */
enum { ML_JOINT_ROWS = 512 };

/* ml_ops.together */
int ml_cuda_together(ml_stream *s, const ml_op_call *call, int n);

/* attn.cu: ATTN, when its keys and values are in their KV pages already. */
attn_call<bf16> ml_attn_call(const ml_op_args *a);
void ml_cuda_attn_read(ml_cuda_stream *s, const ml_op_args *a);

/* norm.cu: ADD, then RMSNORM of the sum. */
void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm);

#endif
