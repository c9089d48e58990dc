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
/* Its backward in bf16, with both gradients side by side in `to` [rows, 2 width] instead of din; not fused. */
void ml_cuda_glu_back_joint(ml_cuda_stream *s, const ml_op_args *a, bf16 *to);

/* norm.cu: backward of RMSNORM and of the RoPE of its whole outputs (rotate-half), bf16 heads of
 * ML_NORM_NARROW numbers.  RoPE's gradient is not written; that of the norm's input has row stride ld. */
void ml_cuda_norm_rope_back(ml_cuda_stream *s, const ml_op_args *norm,
                            const ml_op_args *rope, int64_t ld);

/* copies.cu: rows of bf16, which become columns of rows of ld numbers; both widths are multiples of 8. */
void ml_cuda_put_columns(ml_cuda_stream *s, bf16 *to, int64_t ld, const ml_tensor *from);

#endif
