/* spec_dp.h - data-parallel attention: which nodes have the rows of one DP group alone.
 *
 * thread: any; pure. */
#ifndef ML_MODEL_SPEC_DP_H
#define ML_MODEL_SPEC_DP_H

#include "model/spec.h"

/* [n_node] Nodes that keep keys or state of sequences, and as many as possible of those
 * around them; none if n_dp is 1.  *divided: [n_value] the values that they compute. */
const bool *ml_spec_dp_nodes(const ml_spec *s, int32_t n_dp, ml_arena *a,
                             const bool **divided);

#endif
