/* plan_dump.h - the values of a plan's runs on disk, for finding where two runs part.
 *
 *     DIR/rollout_3/000012.safetensors    one run of the plan
 *
 * A file has the rows of the batch (ids, pos, seq_start) and each value under the number and
 * the name of its op, "0007.linear.model.layers.0.mlp.up_proj.weight"; of a backward pass,
 * "grad." and the place of the input that the gradient is of.  Rows of an op depend on their
 * own tokens only, so that a row of one run may be held against the same token of another,
 * in whichever batch.
 *
 * thread: one plan's at a time; round and check are the loop's. */
#ifndef ML_MODEL_PLAN_DUMP_H
#define ML_MODEL_PLAN_DUMP_H

#include "model/plan.h"

/* filter: a part of the names that are written; NULL: all are. */
ml_status ml_plan_dump_open(ml_plan_dump **out, const char *dir, const char *filter,
                            ml_err *err);
void ml_plan_dump_close(ml_plan_dump *d); /* NULL is fine */

/* What follows belongs to this round; files are numbered anew. */
void ml_plan_dump_round(ml_plan_dump *d, int64_t rollout);

/* Whether all could be written. */
ml_status ml_plan_dump_check(ml_plan_dump *d, ml_err *err);

/* What a plan calls; see ml_plan_watch. */
void ml_plan_dump_begin(ml_plan_dump *d, const ml_rows *rows, ml_backend *be);
void ml_plan_dump_value(ml_plan_dump *d, const ml_spec *s, int32_t node, int k, bool grad,
                        const ml_tensor *t);
void ml_plan_dump_end(ml_plan_dump *d);

#endif
