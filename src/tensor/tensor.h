/* tensor.h - a view of numbers: address, dtype, shape and layout.
 *
 * A tensor never owns its bytes; an ml_buf (device.h) does.  Views are values and are
 * copied freely.  Element order is row-major, except that a linear weight [N, K] (or a
 * stack of them [E, N, K]) may be stored in panels of ML_LANES outputs:
 *
 *     ML_PANELS   [E][ceil(N/16)][K][16]         outputs past N are zero
 *                 [E][ceil(N/16)][K/2][16][2]    bf16 whose K is even: pairs
 *
 * This is the packed-panel order that the GEMM kernels read, forward and backward.  A
 * vector of bf16 pairs widens to two f32 vectors with one instruction each.  Quantized
 * weights are always in panels, each with its scales before its codes (codes.h). */
#ifndef ML_TENSOR_TENSOR_H
#define ML_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/str.h"

#define ML_LANES 16 /* virtual vector width of the f32 contract */
#define ML_DIMS 3

/* ML_U8: bytes that communicators move; no op computes with them.  ML_FP8 to ML_MXFP8: codes
 * of quantized weights, which linear layers read; from ML_KV_E4M3 on: quantized KV pages, which
 * ATTN reads (codes.h has both). */
typedef enum ml_dtype {
    ML_F32,
    ML_BF16,
    ML_F16,
    ML_I32,
    ML_U8,
    ML_FP8,
    ML_INT8,
    ML_INT4,
    ML_INT4_G128,
    ML_NF4,
    ML_MXFP4,
    ML_FP8_BLOCKWISE,
    ML_MXFP8,
    ML_KV_E4M3,
    ML_KV_E5M2,
    ML_KV_INT8,
    ML_N_DTYPE
} ml_dtype;
typedef enum ml_layout { ML_ROWS, ML_PANELS } ml_layout;

typedef struct ml_tensor {
    void *data; /* NULL: absent (an optional bias, an unused output) */
    ml_dtype dtype;
    ml_layout layout;
    int32_t n_dim;
    int64_t shape[ML_DIMS];
} ml_tensor;

/* Of a quantized dtype 1: ranges of its storage are counted in bytes. */
size_t ml_dtype_bytes(ml_dtype t);
const char *ml_dtype_name(ml_dtype t); /* "f32", "bf16", "f16", "i32", "u8", "fp8", .. */

/* Number of elements of the shape; bytes of storage, padding of panels included. */
int64_t ml_tensor_count(const ml_tensor *t);
size_t ml_tensor_bytes(const ml_tensor *t);
/* Bytes of one panel of a weight [.., N, K]. */
size_t ml_tensor_panel_bytes(const ml_tensor *t);

bool ml_tensor_has_pairs(const ml_tensor *t);

/* Addressing of a row: element k is at `first + (k >> pair) * step + (k & pair)`. */
typedef struct ml_row_walk {
    int64_t first, step;
    int pair; /* 0 or 1 */
} ml_row_walk;

ml_row_walk ml_tensor_row(const ml_tensor *t, int64_t row); /* of a matrix */

static inline int64_t ml_row_at(ml_row_walk r, int64_t k) {
    return r.first + (k >> r.pair) * r.step + (k & r.pair);
}

/* f32 to bf16 and f16 round to nearest, ties to even; NaN stays NaN. */
static inline float ml_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t ml_f32_to_bf16(float f) {
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* quiet, and never rounded up to infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float ml_f16_to_f32(uint16_t h);
uint16_t ml_f32_to_f16(float f);

#endif
