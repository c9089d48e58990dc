/* source.h - where the numbers of a parameter lie in a checkpoint.
 *
 * In a tensor of its own name or, where there is none, in a larger tensor that it is a
 * part of (ml_part): both forms are published.
 *
 * thread: any; all is immutable. */
#ifndef ML_MODEL_SOURCE_H
#define ML_MODEL_SOURCE_H

#include "io/checkpoint.h"
#include "model/spec.h"

/* Element (i, j) of a member is element at + i * row + j * col of the tensor. */
typedef struct ml_source {
    const ml_st_tensor *t; /* NULL: nowhere */
    const ml_st_file *file;
    int64_t at, row, col;
} ml_source;

ml_source ml_source_of(const ml_checkpoint *c, const ml_param *p, int32_t e);

/* Does the checkpoint hold it as a part of a larger tensor? */
bool ml_param_in_part(const ml_param *p, const ml_checkpoint *c);

/* A critic's head is not in the checkpoint it starts from. */
bool ml_param_is_value_head(const ml_param *p);

/* Checks every tensor of the checkpoint against the spec (missing, extra, shape, dtype). */
ml_status ml_weights_check(const ml_spec *s, const ml_checkpoint *c, ml_err *err);

/* True for tensors that published checkpoints carry and nobody computes with: the head of a
 * tied model, tables of rotary frequencies, layers that predict further tokens. */
bool ml_weights_may_ignore(const ml_spec *s, ml_str name);

#endif
