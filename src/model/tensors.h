/* tensors.h - the parameters as a checkpoint names them.
 *
 * A set of weights has a tensor per parameter; a checkpoint may hold several parameters in
 * one tensor, or one in several.  What writes under the names of a checkpoint (export,
 * gradients) walks this list.
 *
 * thread: any; a set must not change while it is read. */
#ifndef ML_MODEL_TENSORS_H
#define ML_MODEL_TENSORS_H

#include "model/weights.h"

/* Member `member` of parameter `param`; or, member ML_NONE, the tensor that `param` is the
 * first to have a part of. */
typedef struct ml_named {
    const char *name;
    int32_t param, member;
    int32_t n_dim;
    int64_t shape[3];
} ml_named;

/* All of them, in the order of the spec, in the arena. */
const ml_named *ml_named_list(const ml_spec *s, const ml_checkpoint *c, ml_arena *a,
                              int32_t *n);

/* The tensor of this name, or false: it is not made of parameters. */
bool ml_named_find(ml_named *out, const ml_spec *s, const ml_checkpoint *c, ml_str name);

/* What one step of reading covers: the tensor in `n_slice` equal pieces, whose elements are
 * `n_value` each. */
typedef struct ml_slices {
    int64_t n_slice, n_value;
} ml_slices;
ml_slices ml_named_slices(const ml_named *t);

/* Slices [first, first + n), row-major, as type `to`. */
void ml_named_read(const ml_weights *w, const ml_spec *s, const ml_named *t, int64_t first,
                   int64_t n, ml_dtype to, void *out);

#endif
