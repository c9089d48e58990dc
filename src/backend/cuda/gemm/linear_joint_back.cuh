/* linear_joint_back.cuh - backward of LINEARs with one input as one product of each kind.
 *
 *     dx [m, k]    = dy [m, n] w [n, k]     n: the outputs of all, side by side in dy
 *     dw [n, k] (+)= dy' [n, m] x [m, k]
 *
 * A sum of dx is one chain over all outputs; LINEARs one by one would round it to bf16 after each. */
#ifndef ML_BACKEND_CUDA_GEMM_LINEAR_JOINT_BACK_CUH
#define ML_BACKEND_CUDA_GEMM_LINEAR_JOINT_BACK_CUH

#include "backend/cuda/common.cuh"

enum { ML_JOINT_BACK = 3 }; /* q, k and v */

typedef struct ml_joint_back {
    /* In the order of their weight gradients, which are adjacent; the last runs first. */
    const ml_op_args *linear[ML_JOINT_BACK];
    int n_linear; /* 0: their gradients cannot be computed together */
    int64_t n;    /* outputs of all */
} ml_joint_back;

/* Of n calls of LINEAR, in the order in which they run; of any dtype. */
ml_joint_back ml_joint_back_of(const ml_op_call *call, int n);

/* Is din[k] of a, alone, the gradient of this LINEAR's outputs, which it reads for its products only?  Then the
 * gradient need not be where the plan has it. */
bool ml_joint_back_feeds(const ml_op_args *a, int k, const ml_op_args *linear);

/* Whether these are products of bf16 numbers, of at least one row, whose weights are adjacent, too. */
bool ml_joint_back_takes(const ml_joint_back *j);
/* Where dy is: in scratch memory, after that of a norm (cuda_ops.h). */
bf16 *ml_joint_back_dy(const ml_joint_back *j);
/* Both products, from dy. */
void ml_joint_back_run(ml_cuda_stream *s, const ml_joint_back *j);

/* Two LINEARs after the GLU of their outputs, whose gradients are in dy only.  False: it has done nothing. */
bool ml_joint_back_gated(ml_cuda_stream *s, const ml_op_args *glu, const ml_op_call *call);

#endif
