/* spec_context.h - turns a spec into that of a rank of a context-parallel group.
 *
 * The ranks of the group have pieces of the same sequences and all weights.  Most ops work
 * row by row and see no difference.  Two kinds read other rows of a sequence:
 *
 *   attention (ATTN, INDEX, ATTN_CHOSEN): the keys and values of all ranks are gathered
 *     (GATHER_ROWS) and put in the order of the sequences (ORDER_ROWS); a rank's queries
 *     then read all keys before them, as a chunk of a prompt does in prefill.  In backward
 *     the gradients of keys are summed over the ranks in f32, in the order of
 *     ML_REDUCE_TREE, and then rounded.
 *   recurrent layers (CONV, LINEAR_RNN): the ranks exchange pieces of all heads for whole
 *     sequences of some heads (SWAP_ROWS), and back.  A key head stays whole with its
 *     heads; ranks beyond the number of key heads compute none.
 *
 * Forward collectives move bytes and add nothing, so log-probs have the bits of one rank.
 * The batch of a run describes the pieces (ml_context_rows).
 *
 * thread: one; afterwards the spec is immutable. */
#ifndef ML_MODEL_SPEC_CONTEXT_H
#define ML_MODEL_SPEC_CONTEXT_H

#include "model/spec.h"

/* A new spec with the parameters of s, which must outlive it; closed by ml_spec_close.
 * origin (NULL: not wanted): [out->n_node] the node of s that each one belongs to, in the
 * new spec's arena.  ML_EUNSUP: a layer whose rows cannot be exchanged. */
ml_status ml_spec_context(ml_spec *out, const ml_spec *s, int32_t n_rank, int32_t rank,
                          int32_t **origin, ml_err *err);

#endif
