/* tensors.h - the parameters under their checkpoint names.
 *
 * A weight set has a tensor per parameter; a checkpoint may store several parameters in
 * one tensor, or one in several.  Code that writes under checkpoint names (export,
 * gradients) iterates over this list.
 *
 * thread: any; a set must not change while it is read. */
#ifndef ML_MODEL_TENSORS_H
#define ML_MODEL_TENSORS_H

#include "model/weights.h"

/* Member `member` of parameter `param`; with member ML_NONE, the larger tensor whose
 * first parameter is `param`. */
typedef struct ml_named {
    const char *name;
    int32_t param, member;
    int32_t n_dim;
    int64_t shape[3];
} ml_named;

/* All of them, in the order of the spec, allocated in the arena. */
const ml_named *ml_named_list(const ml_spec *s, const ml_checkpoint *c, ml_arena *a,
                              int32_t *n);

/* The tensor of this name; false: it does not consist of parameters. */
bool ml_named_find(ml_named *out, const ml_spec *s, const ml_checkpoint *c, ml_str name);

/* The unit of reading: the tensor is divided into `n_slice` equal slices of `n_value`
 * elements. */
typedef struct ml_slices {
    int64_t n_slice, n_value;
} ml_slices;
ml_slices ml_named_slices(const ml_named *t);

/* Slices [first, first + n), row-major, as dtype `to`. */
void ml_named_read(const ml_weights *w, const ml_spec *s, const ml_named *t, int64_t first,
                   int64_t n, ml_dtype to, void *out);

#endif
