/* quant.h - quantized tensors of a checkpoint, read as the matrices they stand for.
 *
 * A quantized weight is stored as several tensors: codes, scales, sometimes zero points.
 * ml_quant_resolve replaces them in a checkpoint's list by one logical tensor with the
 * name, shape and dtype that the weight has in the unquantized release:
 *
 *     codes                        scales                            format
 *     x.weight F8_E4M3             x.weight_scale_inv, _scale,       FP8: blocks of 128x128,
 *                                  x.scale                           rows, or one scale; MXFP8
 *     x F8_E4M3 [n, rows, cols]    x_scale_inv, x_scale              the same of a stack
 *     x.weight I8                  x.weight_scale                    INT8 (compressed-tensors)
 *     x.weight I8                  x.scale U8, F8_E8M0               MXFP4 (DeepSeek-V4)
 *     x.weight U8                  x.weight_scale, _scale_2          NVFP4 (modelopt)
 *     x.weight_packed U8           x.weight_scale, _global_scale     NVFP4 (compressed-tensors)
 *     x.weight_packed U8           x.weight_scale U8                 MXFP4 (compressed-tensors)
 *     x.weight_packed I32          x.weight_scale, _shape            INT4, INT8 (compressed-tensors)
 *     x_blocks U8                  x_scales                          MXFP4 (gpt-oss)
 *     x.qweight I32                x.scales, x.qzeros, x.g_idx       GPTQ, AWQ
 *
 * An element is (code - zero) * scale, computed in f32.
 *
 * thread: immutable after ml_quant_resolve. */
#ifndef ML_IO_QUANT_H
#define ML_IO_QUANT_H

#include "io/checkpoint.h"

/* Whether config.json's quant_method is one of the above; `known` receives their list. */
bool ml_quant_method_known(const char *method, const char **known);

/* Replaces the tensors of quantized weights in c->tensor; reads c->dir/config.json. */
ml_status ml_quant_resolve(ml_checkpoint *c, ml_err *err);

/* How the elements of a tensor are computed that are not stored as they are: codes, views
 * with strides, tensors in several pieces.  The first member of each reader's own state. */
typedef void ml_quant_fn(const ml_quant *q, int64_t at, int64_t step, int64_t n,
                         float *out);
struct ml_quant {
    ml_quant_fn *read;
};

/* Elements at, at + step, ... of a logical tensor, n of them, row-major. */
static inline void ml_quant_read(const ml_quant *q, int64_t at, int64_t step, int64_t n,
                                 float *out) {
    q->read(q, at, step, n, out);
}

/* Weights that stay quantized in memory (tensor/codes.h).  Row i is the elements at + i *
 * row, + col, + 2 col, ..: `cols` of them. */
typedef struct ml_quant_rows {
    int64_t at, row, col, cols;
} ml_quant_rows;

/* The dtype that has the codes and scales of these rows as they are; ML_F32: none. */
ml_dtype ml_quant_dtype(const ml_quant *q, ml_quant_rows rows);
/* The codes of row i, a byte each, and the scale of each group of the dtype. */
void ml_quant_row(const ml_quant *q, ml_quant_rows rows, int64_t i, uint8_t *code,
                  float *scale);

#endif
