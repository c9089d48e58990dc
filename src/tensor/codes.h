/* codes.h - quantized weights in memory: codes of 4 or 8 bits, scales of groups of inputs.
 *
 *     dtype          code        scale   inputs that share it
 *     ML_FP8         e4m3        f32     128
 *     ML_INT8        int8        f32     128
 *     ML_INT4        int4        bf16    32
 *     ML_INT4_G128   int4        bf16    128
 *     ML_NF4         NF4         f32     64
 *     ML_MXFP4       e2m1        bf16    32
 *     ML_FP8_BLOCKWISE   as ML_FP8; LINEAR and MOE_LINEAR round their input, too; 128 outputs
 *                    of a block have the same scale, if a weight has whole blocks
 *     ML_MXFP8       e4m3        bf16    32, powers of two; these round it, too
 *
 * An element is the f32 product of its code's value and its scale.  Every output has scales
 * of its own: formats with larger blocks repeat them.  A weight [N, K] is a sequence of
 * panels of ML_LANES outputs, a multiple of 64 bytes each:
 *
 *     scales [ceil(K / group)][16], padded to 64 bytes
 *     codes  [ceil(K / 8)][8][16] bytes, or
 *            [ceil(K / 8)][16] words of 32 bits: eight inputs, the first in the lowest bits
 *
 * An ML_FP8_BLOCKWISE weight whose layout is ML_ROWS (where other linear weights are row-major) is a sequence
 * of rows, a multiple of 128 bytes each, of whole panels; 16 rows take the bytes of a panel:
 *
 *     codes [K], padded to 16 bytes; scales [ceil(K / 128)]
 *
 * Integer codes of 4 bits are stored with 8 added, those of 8 bits as they are.  There are
 * codes past N and K, which nobody uses. */
#ifndef ML_TENSOR_CODES_H
#define ML_TENSOR_CODES_H

#include "tensor/tensor.h"

typedef struct ml_codes {
    int32_t bits, group;
    bool bf16_scale;
    const float *value; /* [16] of a code of 4 bits; NULL: 8 bits */
} ml_codes;

const ml_codes *ml_dtype_codes(ml_dtype t); /* NULL: not quantized */

float ml_e4m3_to_f32(uint8_t code);
/* Of a quantized dtype. */
float ml_code_value(ml_dtype t, uint8_t code);

size_t ml_codes_scale_bytes(ml_dtype t, int64_t cols); /* of a panel, before its codes */
size_t ml_codes_panel_bytes(ml_dtype t, int64_t cols);

/* Of a quantized weight, where other linear weights have the layout `linear`. */
ml_layout ml_codes_layout(ml_dtype t, ml_layout linear);
/* Bytes of a row of ML_FP8_BLOCKWISE in ML_ROWS, and those before its scales. */
int64_t ml_codes_row_bytes(int64_t cols);
int64_t ml_codes_row_scales(int64_t cols);

/* Row `row` of a quantized matrix: n codes, one in a byte, from input k on (a multiple of 8);
 * and the scales of all its groups. */
void ml_codes_put(const ml_tensor *m, int64_t row, int64_t k, int64_t n,
                  const uint8_t *code);
void ml_codes_put_scales(const ml_tensor *m, int64_t row, const float *scale);

/* n elements from input k on, dequantized. */
void ml_codes_read(const ml_tensor *m, int64_t row, int64_t k, int64_t n, float *out);

/* To nearest even, saturating at 448; NaN stays NaN. */
uint8_t ml_f32_to_e4m3(float x);

/* --- KV pages (ML_KV_*) --- */

/* A head's row of a token has one scale, in f32: the largest magnitude, at least 1e-10, over
 * the largest number of the format (448, 57344 or 127); of FP8 rounded up to a power of two, so
 * that a code times its scale is exact in bf16.  It depends on nothing but the row. */
#define ML_KV_SCALE_BYTES 4

bool ml_dtype_is_kv_codes(ml_dtype t);
/* The codes of a row, and its scale; that of a row with infinities or NaN is NaN. */
float ml_kv_encode(ml_dtype t, const float *x, int64_t n, uint8_t *code);
/* The value of a code: x is its product with the scale, rounded once. */
float ml_kv_code_value(ml_dtype t, uint8_t code);

/* The exponent, biased by 127, of the scale of 32 numbers in MXFP8: Transformer Engine's rule,
 * amax / 448 rounded up to a power of two. */
uint8_t ml_mxfp8_exponent(float amax);

/* Whether linear layers with such weights round their input. */
bool ml_dtype_rounds_inputs(ml_dtype t);
/* Elements [begin, begin + n) of a row of activations of such a layer, rounded to e4m3 with a
 * scale for each group of the row.  ML_FP8_BLOCKWISE: groups of 128 with the f32 scale amax /
 * 448, at least 1e-10 / 448, as in Miles and SGLang (dynamic 1x128).  ML_MXFP8: groups of 32
 * with the power of two of ml_mxfp8_exponent. */
void ml_fp8_round(ml_dtype t, const float *row, int64_t cols, int64_t begin, int64_t n,
                  float *out);

#endif
