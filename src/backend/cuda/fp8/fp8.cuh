/* fp8.cuh - products whose inputs are rounded to e4m3, too (ML_FP8_BLOCKWISE, ML_MXFP8).
 *
 * fp8-blockwise on Hopper: codes times codes on tensor cores.  Of each group of 128 inputs four k32
 * steps of wgmma, from zero and over ascending k, give a partial sum; an output is the chain
 * `acc = fmaf(partial, input scale * weight scale, acc)` over ascending groups, rounded to bf16.
 * The bits are the same for every tile shape, and for weights as either operand.
 *
 * mxfp8, and fp8-blockwise on cards without wgmma: rounded inputs and weights are dequantized to bf16
 * (of mxfp8 exactly), and the bf16 product follows.  docs/NUMERICS.md has the rounding. */
#ifndef ML_BACKEND_CUDA_FP8_FP8_CUH
#define ML_BACKEND_CUDA_FP8_FP8_CUH

#include "backend/cuda/fp8/fp8_out.cuh"

/* Whether a product with these weights runs on FP8 tensor cores. */
bool ml_fp8_takes(const ml_cuda_stream *s, ml_dtype weights);

/* Rounded inputs: codes [rows, ml_cuda_fp8_width(k)], and their scales [groups, rows]. */
typedef struct ml_fp8_input {
    const unsigned char *code;
    const float *scale;
} ml_fp8_input;

/* Where the codes of such an input [rows, k] are, from `at` on; and of a LINEAR's, in its scratch memory. */
ml_fp8_out ml_fp8_out_at(void *at, int64_t rows, int64_t k);
ml_fp8_out ml_fp8_out_of(const ml_op_args *a);
/* Rounds the input of such a LINEAR or MOE_LINEAR to the op's scratch memory. */
ml_fp8_input ml_fp8_encode(ml_cuda_stream *s, const ml_op_args *a);

/* Codes times a weight in rows (tensor/codes.h). */
typedef struct ml_fp8_gemm {
    ml_fp8_input x;
    const unsigned char *w;
    int64_t ld, scales; /* bytes of a row, and those before its scales */
    bf16 *y;            /* [rows, n] */
    /* Instead of y, if ml_fp8_fuses_swiglu: FP8 codes of SwiGLU [rows, n].  w is the gate's weight, and that of the
     * up projection follows it in memory. */
    ml_fp8_out gated;
    const float *bias; /* of experts, [n_expert, n], added before the rounding; or NULL */
    const int32_t *start; /* of the experts' rows; NULL: one weight */
    int n_expert, rows, n, k;
    bool blocks; /* 128 outputs, from each multiple of 128 on, have the same scales */
} ml_fp8_gemm;

/* The product of the op's weights.  n: outputs, of several adjacent weights together if that is more
 * than those of a->w[0]; then `blocks` says that of the first one. */
ml_fp8_gemm ml_fp8_gemm_of(const ml_op_args *a, ml_fp8_input x, int64_t n, void *y);
void ml_fp8_multiply(ml_cuda_stream *s, const ml_fp8_gemm *g);
/* Whether ml_fp8_multiply can compute SwiGLU in its epilogue, and does it faster than a second kernel. */
bool ml_fp8_fuses_swiglu(const ml_cuda_stream *s, const ml_fp8_gemm *g);
/* fp8_wgmma.cu */
void ml_fp8_gemm_run(ml_cuda_stream *s, const ml_fp8_gemm *g);

/* gemm/linear.cu: LINEAR of rounded inputs, with its bias. */
void ml_cuda_linear_of_codes(ml_cuda_stream *s, const ml_op_args *a, ml_fp8_input x);

/* Otherwise the rows that the bf16 product reads: a->in[0], or its rounded values in scratch. */
const void *ml_fp8_values(ml_cuda_stream *s, const ml_op_args *a);

#endif
