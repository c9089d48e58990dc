/* moe.cuh - limits of the mixture of experts, and its grouped GEMM. */
#ifndef ML_BACKEND_CUDA_MOE_MOE_CUH
#define ML_BACKEND_CUDA_MOE_MOE_CUH

#include "backend/cuda/common.cuh"

enum { ML_MOE_EXPERTS = 512, ML_MOE_GROUPS = 64, ML_MOE_TOP = 64 };

/* For each expert c(m, n) (+)= sum over k of a(m, k) b(n, k); strides as in gemm.cuh. */
template <class IN, class OUT> struct ml_expert_gemm {
    const IN *a, *b;
    OUT *c;
    const int32_t *start; /* [n_expert + 1] */
    const float *bias;    /* [n_expert, n] or NULL */
    int n_expert;
    int64_t n, k;               /* k: 0 if the sum is over the expert's rows */
    int64_t m;                  /* 0: the expert's rows */
    int64_t a_m, a_k, b_n, b_k; /* strides within the expert */
    int64_t a_row, b_row;       /* stride between batch rows; 0: not indexed by rows */
    int64_t b_expert, c_expert; /* stride between experts; 0: not indexed by experts */
    int64_t ldc;
    bool add;
};

/* moe_mma.cu: widths in multiples of 8; `rows`: of all experts together. */
void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows);
void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g, int64_t rows);

#endif
