/* spec_experts.h - turns the ops of a spec into those of one rank of an expert group.
 *
 * The rows between MOE_GATHER and MOE_COMBINE travel: SEND_ROWS brings them to the ranks of
 * their experts, two MOE_GATHERs put them in the order of experts and back, and RETURN_ROWS
 * brings the results home, where they are combined.  Routing, shared experts and all
 * other layers stay as they are, and so do the numbers of parameters: MOE_LINEAR reads
 * this rank's members of its stack.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_SPEC_EXPERTS_H
#define ML_MODEL_SPEC_EXPERTS_H

#include "model/spec.h"

/* out: a spec that shares everything with s except nodes and values, which are allocated in
 * the arena; values of s keep their numbers.  Returns, for each node of out, its number in
 * s; nodes that s does not have get that of the one after. */
const int32_t *ml_spec_experts(ml_spec *out, ml_arena *a, const ml_spec *s, int32_t n_rank,
                               int32_t rank);

#endif
