/* gemm.h - the three GEMMs of a linear layer, over weights in packed panels.
 *
 * The structure follows GotoBLAS/BLIS: operands are packed into panels, blocked for the
 * caches, and multiplied by a register-tile micro-kernel (gemm_kern.h).  Each output is
 * one FMA chain over the ascending reduction index, starting from +0, or from the
 * previous value where the function adds.  Vector lanes and threads divide outputs, never
 * the reduction, so tile shapes, M and the thread count change speed only, not bits.
 *
 * Weights are w [N, K], layout ML_PANELS, f32, bf16 or quantized (tensor/codes.h), whose
 * elements are dequantized to f32 in the caches; a range of whole panels is itself a valid
 * weight (data advanced by ml_tensor_panel_bytes).  All other operands are f32,
 * row-major with a row stride (ld) in elements.  thread: the stream's owner. */
#ifndef ML_BACKEND_CPU_GEMM_H
#define ML_BACKEND_CPU_GEMM_H

#include "backend/cpu/columns.h"
#include "tensor/codes.h"

#define ML_GEMM_SPAN 2112 /* most depth that is packed at once: bounds the scratch */

/* Scratch bytes for any of the three GEMMs with at most m rows and this weight. */
size_t ml_gemm_scratch(const ml_cpu_stream *s, const ml_tensor *w, int64_t m);

/* y[m,N] = x[m,K] w^T, then + bias[N] (rounded separately) when bias is not NULL. */
typedef struct ml_gemm_out {
    float *y;
    int64_t ldy;
    const ml_tensor *w;
    const float *bias;
} ml_gemm_out;

/* n outputs of one x, whose weights have the same K and dtype: x is packed once, and with
 * few rows the threads synchronize once. */
void ml_gemm_forward(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                     const float *x, int64_t ldx, int64_t m, void *scratch);

/* A panel of the quantized matrix w, and those that follow it. */
static inline ml_gemm_codes ml_gemm_codes_of(const ml_tensor *w, const void *panel) {
    return (ml_gemm_codes){
        .scale = panel,
        .code = (const unsigned char *)panel + ml_codes_scale_bytes(w->dtype, w->shape[1]),
        .panel = (int64_t)ml_codes_panel_bytes(w->dtype, w->shape[1]),
        .dtype = w->dtype,
    };
}

/* gemm_stream.c: the same for few rows (m > 0).  It packs the rows, where that pays, into
 * `packed` [thread][K or ML_GEMM_SPAN][16].  False: m is too large, and nothing was done. */
bool ml_gemm_stream(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                    const float *x, int64_t ldx, int64_t m, float *packed);

/* dx[m,K] = dy[m,N] w, FMA chains over ascending n; `add`: chains start from dx.  `by_block`: each
 * block of 352 outputs is a chain from +0, and they are added: long sums of gradients round at
 * their own size less often. */
void ml_gemm_dinput(const ml_cpu_stream *s, float *dx, int64_t lddx, const float *dy,
                    int64_t lddy, const ml_tensor *w, int64_t m, bool add, bool by_block,
                    void *scratch);

/* dw[N,K] (+)= dy^T x; dw is f32 ML_PANELS.  FMA chains over ascending rows that start from dw, or from +0
 * unless add; or, with `seqs`, from +0 for each block of 176 rows of a sequence, and are added. */
void ml_gemm_dweight(const ml_cpu_stream *s, const ml_tensor *dw, const float *dy,
                     int64_t lddy, const float *x, int64_t ldx, int64_t m,
                     const ml_row_runs *seqs, bool add, void *scratch);

#endif
