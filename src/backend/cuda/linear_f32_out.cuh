/* narrow.cuh - LINEAR with f32 weights and outputs over bf16 rows. */
#ifndef ML_BACKEND_CUDA_NARROW_CUH
#define ML_BACKEND_CUDA_NARROW_CUH

#include "backend/cuda/common.cuh"

/* By the types of input and output: what weights are is not known when a plan is made. */
bool ml_cuda_narrow_takes(const ml_op_args *a);
size_t ml_cuda_narrow_scratch(const ml_op_args *a); /* of backward */
void ml_cuda_narrow_forward(ml_stream *s, const ml_op_args *a);
/* Of input and weights; the bias is linear.cu's. */
void ml_cuda_narrow_backward(ml_stream *s, const ml_op_args *a);

#endif
