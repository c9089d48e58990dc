/* dense.cuh - quantized weights (tensor/codes.h) as bf16.
 *
 * On a GPU an element of a quantized weight is the product of its code's value and its scale,
 * rounded to bf16.  Products read either the weight after it was dequantized to scratch memory
 * (dense.cu), or its codes, which they dequantize in registers (gemm_codes.cuh):
 * the bits are those of bf16 weights with these values. */
#ifndef ML_BACKEND_CUDA_DENSE_CUH
#define ML_BACKEND_CUDA_DENSE_CUH

#include "backend/cuda/common.cuh"

/* The weight of a LINEAR or MOE_LINEAR, row-major: where it is or, if it is quantized, in the op's
 * scratch memory.  start: of the experts' rows; those without rows are left out. */
const void *ml_cuda_dense(ml_cuda_stream *s, const ml_op_args *a, const int32_t *start);
/* Its dtype. */
ml_dtype ml_cuda_dense_dtype(const ml_tensor *w);

/* gemm_codes_experts.cu: forward of a MOE_LINEAR of few rows, from the codes.  False: cannot. */
bool ml_cuda_expert_codes(ml_cuda_stream *s, const ml_op_args *a);

#endif
