/* lora_decode.cuh - LORA of few rows, for the linear layers of one input. */
#ifndef ML_BACKEND_CUDA_LORA_DECODE_CUH
#define ML_BACKEND_CUDA_LORA_DECODE_CUH

#include "backend/cuda/lora.cuh"

/* Calls of LORA that read the same rows, 1 to ML_LORA_LAYERS of them. */
bool ml_cuda_lora_decode_supports(ml_cuda_stream *s, const ml_op_args *const *a, int n);

/* The outputs.  None may overlap the in[1] of another call. */
void ml_cuda_lora_decode(ml_cuda_stream *s, const ml_op_args *const *a, int n);

/* The same in two steps, around the GEMM of the linear layers.
 *
 * low: the products with A, into the scratch memory of a[0].  The kernels launched next, up to add,
 * run beside it: they may read what it reads, and must not touch its scratch memory.  Returns its kernel
 * in a graph that is recorded. */
cudaGraphNode_t ml_cuda_lora_decode_low(ml_cuda_stream *s, const ml_op_args *const *a,
                                        int n);

/* add: the outputs.  joint: those of the linear layers, [rows, columns of all layers], in place of
 * in[1]; NULL: in[1].  glu: two calls whose outputs nothing but this GLU reads, which is computed
 * instead; NULL: none.  low: what low returned. */
void ml_cuda_lora_decode_add(ml_cuda_stream *s, const ml_op_args *const *a, int n,
                             const bf16 *joint, const ml_op_args *glu, cudaGraphNode_t low);

/* Whether two calls can be gated: every adapter has both layers, or none. */
bool ml_cuda_lora_decode_gates(const ml_op_args *const *a);

#endif
