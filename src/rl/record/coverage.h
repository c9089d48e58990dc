/* coverage.h - checks that each sample contributes its gradient exactly once.
 *
 * A row is written when the derivative of the loss with respect to a sample's log-probs
 * enters the backward pass of a train step: at that point, not from the schedule, which
 * could be wrong.  Rows of earlier rollouts are kept while the table has space, so that a
 * sample that is trained on again in a later rollout is found as well.
 *
 * thread: the trainer's. */
#ifndef ML_RL_RECORD_COVERAGE_H
#define ML_RL_RECORD_COVERAGE_H

#include "base/err.h"
#include "rl/record/events.h"

typedef struct ml_coverage ml_coverage;

/* Allocates a table of n_row samples, at least the number of samples of a rollout. */
ml_status ml_coverage_open(ml_coverage **out, int64_t n_row, ml_events *events,
                           ml_err *err);
void ml_coverage_close(ml_coverage *w); /* NULL is allowed */

/* Records that this step uses the gradient of this sample; weight: the sum of its absolute
 * values. */
void ml_coverage_see(ml_coverage *w, int64_t sample, int64_t rollout, int64_t step,
                     double weight);

/* After the train steps of a rollout: checks that each of these samples was recorded once
 * in this rollout and never before. */
ml_status ml_coverage_judge(ml_coverage *w, const int64_t *sample, int64_t n,
                            int64_t rollout, ml_err *err);

#endif
