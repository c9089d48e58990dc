/* weights_codes.h - fills quantized matrices of a weight set: codes (tensor/codes.h), or bf16
 * numbers that are rounded as INT4 training in Miles does (ml_quant_fake_int4).
 *
 * thread: the functions use the caller's pool. */
#ifndef ML_MODEL_WEIGHTS_CODES_H
#define ML_MODEL_WEIGHTS_CODES_H

#include "base/pool.h"
#include "model/weights.h"

/* The dtype in which a set stores a linear layer; ML_F32: not quantized.  c: for STORED. */
ml_dtype ml_weights_code_dtype(const ml_param *p, const ml_checkpoint *c,
                               ml_weight_dtype want);
/* The inputs of a group of ml_quant_fake_int4, if such a set has its values; else 0. */
int64_t ml_weights_fake_group(const ml_param *p, ml_weight_dtype dtype);

/* Rows [row, row + n) of a matrix, row-major. */
typedef void ml_rows_fn(const void *ud, int64_t row, int64_t n, float *out);

/* Quantizes a matrix of a set by the rules of io/quantize.h: to codes, or with a fake_group to
 * bf16. */
void ml_weights_encode(const ml_tensor *m, int64_t fake_group, ml_rows_fn *read,
                       const void *ud, ml_pool *pool);
/* The values, or the codes, of a tensor of a checkpoint. */
void ml_weights_encode_source(const ml_tensor *m, int64_t fake_group, const ml_source *src,
                              ml_pool *pool);

#endif
