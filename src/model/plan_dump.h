/* plan_dump.h - dumps the values of a plan's runs, to find where two runs diverge.
 *
 *     DIR/rollout_3/000012.safetensors    one run of the plan
 *
 * A file has the rows of the batch (ids, pos, seq_start) and each value under the number
 * and the name of its op, "0007.linear.model.layers.0.mlp.up_proj.weight"; in a backward
 * pass, "grad." and the index of the input whose gradient it is.  Rows of an op depend on
 * their own tokens only, so a row of one run can be compared with the same token of
 * another run, in any batch.
 *
 * thread: one plan's at a time; round and check are called by the RL loop. */
#ifndef ML_MODEL_PLAN_DUMP_H
#define ML_MODEL_PLAN_DUMP_H

#include "model/plan.h"

/* filter: a substring of the names to write; NULL: all. */
ml_status ml_plan_dump_open(ml_plan_dump **out, const char *dir, const char *filter,
                            ml_err *err);
void ml_plan_dump_close(ml_plan_dump *d); /* NULL is allowed */

/* The following runs belong to this rollout; file numbers restart. */
void ml_plan_dump_round(ml_plan_dump *d, int64_t rollout);

/* Whether all files could be written. */
ml_status ml_plan_dump_check(ml_plan_dump *d, ml_err *err);

/* Called by a plan; see ml_plan_dump_to. */
void ml_plan_dump_begin(ml_plan_dump *d, const ml_rows *rows, ml_backend *be);
void ml_plan_dump_value(ml_plan_dump *d, const ml_spec *s, int32_t node, int k, bool grad,
                        const ml_tensor *t);
void ml_plan_dump_end(ml_plan_dump *d);

#endif
