/* events.h - what happened in a run, a line of JSON each, for looking at it afterwards.
 *
 *     DIR/events.jsonl    {"type": "train_group_step_end", "rollout": 3, "step": 1}
 *
 * A resumed run appends; rounds that it repeats are there twice.  The analysis reads the
 * whole file and holds it against what must be so.
 *
 * thread: the loop's. */
#ifndef ML_RL_EVENTS_H
#define ML_RL_EVENTS_H

#include "base/err.h"
#include "rl/metrics.h"

typedef struct ml_events ml_events;

ml_status ml_events_open(ml_events **out, const char *dir, ml_err *err);
void ml_events_close(ml_events *e); /* NULL is fine */

/* All of these do nothing where e is NULL; what cannot be written is told by check. */
void ml_events_step_end(ml_events *e, int64_t rollout, int64_t step);
void ml_events_figures(ml_events *e, const char *type, int64_t rollout,
                       const ml_metrics *figures);
/* whose: "train_engine_local_weight_checksum" or "inference_engine_weight_checksum". */
void ml_events_checksum(ml_events *e, const char *whose, int64_t rollout, uint64_t version,
                        uint64_t hash);
/* The sample's gradient entered a step: `weight` is the sum of its magnitudes. */
void ml_events_witness(ml_events *e, int64_t rollout, int64_t step, int64_t sample,
                       double weight);
ml_status ml_events_check(const ml_events *e, ml_err *err);

/* Wherever a version of the weights was hashed, in whichever process, the hash is the same;
 * and no sample has taught in two rounds. */
ml_status ml_events_analyse(const char *dir, ml_err *err);

#endif
