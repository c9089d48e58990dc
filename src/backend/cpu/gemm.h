/* gemm.h - the three products of a linear layer, over weights in panels.
 *
 * Every output is one FMA chain over the ascending reduction index, starting from +0,
 * or from the value already there where the function adds.  Vector lanes run across
 * outputs, threads divide outputs, so tile shapes, M and thread count change speed only.
 *
 * Weights are w [N, K], layout ML_PANELS, f32 or bf16; a range of whole panels is a
 * weight of its own (data moved by panel * K * 16 elements).  Everything else is f32,
 * row-major with a row stride (ld) in elements.  thread: the stream's owner. */
#ifndef ML_BACKEND_CPU_GEMM_H
#define ML_BACKEND_CPU_GEMM_H

#include "backend/cpu/cpu_priv.h"

#define ML_GEMM_SPAN 2112 /* depth that is packed at once: bounds the scratch */

/* Scratch bytes for any of the three with at most m rows and this weight. */
size_t ml_gemm_scratch(const ml_cpu_stream *s, const ml_tensor *w, int64_t m);

/* y[m,N] = x[m,K] w^T, then + bias[N] (one rounding more) when bias is not NULL. */
typedef struct ml_gemm_out {
    float *y;
    int64_t ldy;
    const ml_tensor *w;
    const float *bias;
} ml_gemm_out;

/* n outputs of one x, whose weights have the same K and dtype: x is packed once, and for few
 * rows threads meet once. */
void ml_gemm_forward(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                     const float *x, int64_t ldx, int64_t m, void *scratch);

/* gemm_stream.c: the same for few rows (m > 0), which it packs, where that pays, to `packed`
 * [K or ML_GEMM_SPAN, 16].  False: they are too many, nothing is done. */
bool ml_gemm_stream(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                    const float *x, int64_t ldx, int64_t m, float *packed);

/* dx[m,K] = dy[m,N] w, chains over ascending n; `add`: chains start from dx. */
void ml_gemm_dinput(const ml_cpu_stream *s, float *dx, int64_t lddx, const float *dy,
                    int64_t lddy, const ml_tensor *w, int64_t m, bool add, void *scratch);

/* dw[N,K] += dy^T x, chains over ascending rows that start from dw; dw is f32 ML_PANELS. */
void ml_gemm_dweight(const ml_cpu_stream *s, const ml_tensor *dw, const float *dy,
                     int64_t lddy, const float *x, int64_t ldx, int64_t m, void *scratch);

#endif
