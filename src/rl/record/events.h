/* events.h - a log of the events of a run, one line of JSON each, for later analysis.
 *
 *     DIR/events.jsonl    {"type": "train_group_step_end", "rollout": 3, "step": 1}
 *
 * A resumed run appends; rollouts that it repeats are logged twice.  The analysis reads the
 * whole file and checks its invariants.
 *
 * thread: the loop's. */
#ifndef ML_RL_RECORD_EVENTS_H
#define ML_RL_RECORD_EVENTS_H

#include "base/err.h"
#include "rl/record/metrics.h"

typedef struct ml_events ml_events;

ml_status ml_events_open(ml_events **out, const char *dir, ml_err *err);
void ml_events_close(ml_events *e); /* NULL is allowed */

/* These do nothing if e is NULL; ml_events_check reports write errors. */
void ml_events_step_end(ml_events *e, int64_t rollout, int64_t step);
void ml_events_metrics(ml_events *e, const char *type, int64_t rollout,
                       const ml_metrics *metrics);
/* whose: "train_engine_local_weight_checksum" or "inference_engine_weight_checksum". */
void ml_events_checksum(ml_events *e, const char *whose, int64_t rollout, uint64_t version,
                        uint64_t hash);
/* The sample's gradient entered a train step; weight: the sum of its absolute values. */
void ml_events_coverage(ml_events *e, int64_t rollout, int64_t step, int64_t sample,
                        double weight);
ml_status ml_events_check(const ml_events *e, ml_err *err);

/* Checks that all hashes of a weight version are equal, whichever process computed them,
 * and that no sample was trained on in two rollouts. */
ml_status ml_events_analyse(const char *dir, ml_err *err);

#endif
