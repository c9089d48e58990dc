/* fp8_back.cuh - operands of FP8 gradients: matrices rounded in groups of 128 numbers along the dimension
 * that a product sums over.
 *
 * A group's scale is max(amax, 1e-30) / fmax, fmax being 448 of e4m3 and 57344 of e5m2: gradients are often
 * smaller than the least amax of inputs (fp8.cu).  docs/NUMERICS.md has the rounding. */
#ifndef ML_BACKEND_CUDA_FP8_FP8_BACK_CUH
#define ML_BACKEND_CUDA_FP8_FP8_BACK_CUH

#include "backend/cuda/common.cuh"

/* Codes row by row, and the scales of groups, [groups][rows of codes]. */
typedef struct ml_fp8_operand {
    unsigned char *code;
    float *scale;
} ml_fp8_operand;

/* A bf16 matrix x [rows, cols] with cols a multiple of 128. */
typedef struct ml_fp8_rounding {
    const bf16 *x;
    int64_t rows, cols;
    int64_t ld; /* columns of all matrices whose codes are side by side */
    bool e5m2;
    /* cuBLASLt takes multiples of ML_FP8_TAIL rows: [rows - tail rows, cols], and a tail [ML_FP8_TAIL, cols]
     * that is filled up with zeros.  No code: not wanted; no tail, or no rows before it. */
    ml_fp8_operand along_rows, tail;
    /* [cols, ml_cuda_fp8_width(rows)], zeros past `rows`; scales are [groups][ld].  blocks: e4m3 with a scale for each block of
     * 128 x 128, [cols / 128][groups of rows rounded up to four]. */
    ml_fp8_operand along_cols;
    bool blocks;
} ml_fp8_rounding;

void ml_fp8_round_operand(ml_cuda_stream *s, const ml_fp8_rounding *r);

/* The gradients of the inputs g and u of SwiGLU, [rows, cols] as dy is: x of both is not read. */
typedef struct ml_fp8_gate_rounding {
    ml_fp8_rounding gate, up;
    const bf16 *g, *u, *dy;
} ml_fp8_gate_rounding;

void ml_fp8_round_gate(ml_cuda_stream *s, const ml_fp8_gate_rounding *r);

/* A weight in row-major order, ld bytes from a row to the next, and the scales of its blocks of 128 x 128. */
typedef struct ml_fp8_blocks {
    const unsigned char *code;
    int64_t ld;
    const float *scale;
} ml_fp8_blocks;

/* The codes [k, n] of a weight [n, k], and the scales of their blocks, [k / 128][n / 128], in rows of ld codes and
 * of ld / 128 scales, rounded up to four as cuBLASLt reads them. */
void ml_fp8_transpose(ml_cuda_stream *s, const ml_fp8_operand *to, const ml_fp8_blocks *w,
                      int64_t n, int64_t k, int64_t ld);

#endif
