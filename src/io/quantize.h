/* quantize.h - rounds weights to the formats that io/quant.h reads, to nearest.
 *
 *     format      codes                  scales                        rule
 *     fp8         e4m3                   f32, blocks of 128x128        amax / 448
 *     fp8-ue8m0   e4m3                   f32 powers of two, 128x128    rounded up
 *     fp8-row     e4m3                   f32, one for each row         amax / 448
 *     fp8-tensor  e4m3                   f32, one                      amax / 448
 *     mxfp8       e4m3                   e8m0, 1x32                    amax / 448, rounded up
 *     int4        8 in 32 bits, offset   bf16, 1x32 (or 1x128)         amax / 7
 *     mxfp4       e2m1                   e8m0, 1x32                    amax / 6, rounded up
 *     nvfp4       e2m1                   e4m3, 1x16, and f32           amax / 6
 *     int8        int8                   f32, 1x128                    amax / 127
 *     nf4         NF4                    f32, 1x64                     amax
 *
 * These are the rules of Miles' converters, DeepGEMM, Transformer Engine and triton_kernels;
 * codes and scales are theirs bit for bit. */
#ifndef ML_IO_QUANTIZE_H
#define ML_IO_QUANTIZE_H

#include "io/safetensors.h"
#include "tensor/codes.h"

typedef enum ml_quant_to {
    ML_TO_NONE,
    ML_TO_FP8,
    ML_TO_FP8_UE8M0,
    ML_TO_FP8_ROW,
    ML_TO_FP8_TENSOR,
    ML_TO_MXFP8,
    ML_TO_INT4,
    ML_TO_INT4_G128,
    ML_TO_MXFP4,
    ML_TO_NVFP4,
    ML_TO_INT8, /* these two are quantized in memory only */
    ML_TO_NF4,
} ml_quant_to;

/* One of the tensors that store a weight. */
typedef struct ml_quant_part {
    const char *suffix; /* of the weight's name without ".weight" */
    ml_st_dtype dtype;
    int32_t n_dim;
    int64_t shape[3];
    int64_t rows;     /* of the weight, that one row of this tensor is made from */
    size_t row_bytes; /* 0: the tensor does not depend on a range of rows */
} ml_quant_part;

#define ML_QUANT_PARTS 4
#define ML_QUANT_BAND 128 /* rows that are quantized together; a part has whole rows then */

/* Its tensors, codes first; 0: the format does not allow this shape. */
int32_t ml_quant_parts(ml_quant_part out[ML_QUANT_PARTS], ml_quant_to to, int64_t rows,
                       int64_t cols);

/* Whether ml_quantize needs the largest magnitude of the whole tensor. */
bool ml_quant_needs_amax(ml_quant_to to);

/* Part i of `rows` rows of a weight, of which the first is a multiple of ML_QUANT_BAND; amax
 * is that of the tensor.  A part without row_bytes is written whole. */
void ml_quantize(ml_quant_to to, int32_t i, const float *x, int64_t rows, int64_t cols,
                 float amax, void *out);

/* Rows of a weight in a dtype of tensor/codes.h, except ML_MXFP4, by the same rules: codes, a
 * byte each, and the scales [rows][groups].  The first row is a multiple of ML_QUANT_BAND.
 * A block with infinities or NaN is NaN. */
void ml_quantize_rows(ml_dtype to, const float *x, int64_t rows, int64_t cols,
                      uint8_t *code, float *scale);

/* Rows of a weight as INT4 training in Miles reads it, in bf16: each group of inputs of a row
 * has the f32 scale amax / 7, at least 1e-5, and its values are the nearest multiples of the
 * scale.  Exported codes have other values, because their scales are bf16.  The last group of a
 * row may be shorter, zeros have the sign of the number, and a group with infinities or NaN is
 * NaN. */
void ml_quant_fake_int4(const float *x, int64_t rows, int64_t cols, int64_t group,
                        uint16_t *out);

/* The largest magnitude of n numbers and `most`. */
float ml_quant_amax(const float *x, int64_t n, float most);

#endif
