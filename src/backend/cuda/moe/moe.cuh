/* moe.cuh - limits of the mixture of experts, and the grouped GEMM of experts and heads. */
#ifndef ML_BACKEND_CUDA_MOE_MOE_CUH
#define ML_BACKEND_CUDA_MOE_MOE_CUH

#include "backend/cuda/common.cuh"

enum { ML_MOE_EXPERTS = 1024, ML_MOE_GROUPS = 64, ML_MOE_TOP = 64 };

/* For each expert c(m, n) (+)= sum over k of a(m, k) b(n, k); strides as in gemm.cuh.
 * Without `start` every expert has all rows: the heads of HEAD_LINEAR. */
template <class IN, class OUT> struct ml_expert_gemm {
    const IN *a, *b;
    OUT *c;
    const int32_t *start; /* [n_expert + 1] or NULL */
    int64_t rows;         /* of each expert, without start */
    const float *bias;    /* [n_expert, n] or NULL */
    int n_expert;
    int64_t n, k;               /* k: 0 if the sum is over the expert's rows */
    int64_t m;                  /* 0: the expert's rows */
    int64_t a_m, a_k, b_n, b_k; /* strides within the expert */
    int64_t a_row, b_row;       /* stride between batch rows; 0: not indexed by rows */
    int64_t a_expert, b_expert,
        c_expert; /* stride between experts; 0: not indexed by them */
    int64_t ldc;
    bool add;
};

/* Whether the blocks of a grid's z have an expert each; otherwise tiles are numbered through
 * all experts, whose numbers of rows only the device knows. */
template <class IN, class OUT>
__host__ __device__ static inline bool
ml_expert_is_fixed(const ml_expert_gemm<IN, OUT> &g) {
    return g.m || !g.start;
}

/* Whether an expert with so many rows has outputs: without rows it has those of a weight's gradient
 * that is written, which are zero. */
template <class IN, class OUT>
__device__ static inline bool ml_expert_has_outputs(const ml_expert_gemm<IN, OUT> &g,
                                                    int rows) {
    return rows > 0 || (g.m && !g.add);
}

/* The grid for tiles of bm x bn outputs; `rows`: of all experts together, or of each. */
template <class IN, class OUT>
static inline dim3 ml_expert_grid(const ml_expert_gemm<IN, OUT> &g, int64_t rows, int bm,
                                  int bn) {
    bool fixed = ml_expert_is_fixed(g);

    return dim3(ml_cuda_blocks(g.n, bn),
                fixed ? ml_cuda_blocks(g.m ? g.m : rows, bm)
                      : ml_most_pieces(rows, g.n_expert, bm),
                fixed ? (unsigned)g.n_expert : 1);
}

/* moe_mma.cu: widths in multiples of 8; `rows`: of all experts together. */
void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows);
void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g, int64_t rows);
/* moe_wgmma.cu: the same bits, faster for many rows; Hopper only.  False: cannot. */
bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows);
bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g, int64_t rows);

#endif
