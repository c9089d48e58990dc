/* spec_shard.h - turns a spec into the spec of one rank of a tensor-parallel group.
 *
 * Every matrix is cut along its outputs, never along its inputs: a rank computes some
 * columns of a product, each by the same chain of operations as a single rank would.
 * Heads of attention and columns of a gated activation stay cut; before the first op that
 * needs whole rows (ml_op_info.cut) the spec gets a GATHER_COLS, which moves bytes between
 * the ranks, and a MERGE_COLS, which puts the columns in order.  So all results have the
 * bits of one rank, for any number of ranks.
 *
 * LORA ops are cut like the linear layers that they follow: A is whole, and so K never is
 * divided here either; of B a rank has the rows of its outputs.
 *
 * Attention's KV pages hold a rank's key heads.  The LM head is cut by vocabulary, and the
 * logits are gathered; its log-prob and entropy outputs are not those of whole rows.
 * Embedding tables, norms, routers and sparse attention's indexer are replicated.  All
 * ranks have the same shapes.
 *
 * Data-parallel attention (ml_spec.attn_dp, set before): consecutive ranks form DP groups, of
 * which each has the KV pages and the recurrent state of its own sequences.  From the
 * projections that lead to attention up to the one behind it, nodes compute the rows of their
 * group (ml_node.dp), cut over the ranks of the group alone.  A GATHER_ROWS of the groups
 * follows; residuals, MLPs, experts and the LM head have the rows of all groups, cut over all
 * ranks.
 *
 * thread: one; afterwards the spec is immutable. */
#ifndef ML_MODEL_SPEC_SHARD_H
#define ML_MODEL_SPEC_SHARD_H

#include "model/spec.h"

/* In place.  ML_EUNSUP: a critic.  One rank: the spec stays as it is. */
ml_status ml_spec_shard(ml_spec *s, int32_t n_rank, int32_t rank, ml_err *err);
/* A cut copy; the whole spec must outlive it. */
ml_status ml_spec_shard_copy(ml_spec *out, const ml_spec *whole, int32_t n_rank,
                             int32_t rank, ml_err *err);

#endif
