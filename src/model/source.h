/* source.h - locates the elements of a parameter in a checkpoint.
 *
 * A parameter is a tensor of its own name or, if there is none, a part of a larger tensor
 * (ml_part): both forms are published.
 *
 * thread: any; everything is immutable. */
#ifndef ML_MODEL_SOURCE_H
#define ML_MODEL_SOURCE_H

#include "io/checkpoint.h"
#include "model/spec.h"

/* Element (i, j) of a member is element at + i * row + j * col of the tensor. */
typedef struct ml_source {
    const ml_st_tensor *t; /* NULL: not in the checkpoint */
    const ml_st_file *file;
    int64_t at, row, col;
} ml_source;

ml_source ml_source_of(const ml_checkpoint *c, const ml_param *p, int32_t e);
/* Member e in this tensor, which has its name, or the larger tensor's of its part. */
ml_source ml_source_in(const ml_st_tensor *t, bool part, const ml_param *p, int32_t e);

/* Whether the checkpoint stores it as a part of a larger tensor. */
bool ml_param_in_part(const ml_param *p, const ml_checkpoint *c);

/* Whether it is a critic's head, which is not in the checkpoint the critic starts from. */
bool ml_param_is_value_head(const ml_param *p);

/* Whether a tensor of this name is an LM head. */
bool ml_is_lm_head(ml_str name);

/* n elements of a tensor as f32: at, at + step, .. */
void ml_source_f32(const ml_st_tensor *t, int64_t at, int64_t step, int64_t n, float *out);

/* Element `at` of a tensor of integers. */
int64_t ml_source_integer(const ml_st_tensor *t, int64_t at);

/* Checks every tensor of the checkpoint against the spec (missing, extra, shape, dtype). */
ml_status ml_weights_check(const ml_spec *s, const ml_checkpoint *c, ml_err *err);

/* Checks one tensor that has the name of a parameter, or of its part; `where` begins the
 * message.  Values are checked if it has data.  `padded`: rows of a vocabulary may follow
 * those of the model. */
ml_status ml_source_check(const ml_param *p, bool part, const ml_st_tensor *t, bool padded,
                          const char *where, ml_err *err);

/* True for unused tensors of published checkpoints: the head of a tied model, tables of
 * rotary frequencies, multi-token prediction layers. */
bool ml_weights_may_ignore(const ml_spec *s, ml_str name);

/* Tensors of vision and audio towers, which are not run; exports copy them. */
int64_t ml_weights_tower_count(const ml_spec *s, const ml_checkpoint *c);

#endif
