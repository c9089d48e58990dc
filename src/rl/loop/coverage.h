/* coverage.h - checks that each sample contributes its gradient exactly once.
 *
 * A row is written when the derivative of the loss with respect to a sample's log-probs
 * enters the backward pass of a train step: at that point, not from the schedule, which
 * could be wrong.  Rows of earlier rollouts are kept while the table has space, so that a
 * sample that is trained on again in a later rollout is found as well.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LOOP_COVERAGE_H
#define ML_RL_LOOP_COVERAGE_H

#include "rl/loop/events.h"
#include "rl/observer.h"

typedef struct ml_coverage ml_coverage;

/* Allocates a table of n_row samples, at least the number of samples of a rollout. */
ml_status ml_coverage_open(ml_coverage **out, int64_t n_row, ml_events *events,
                           ml_err *err);
void ml_coverage_close(ml_coverage *w); /* NULL is allowed */

/* An observer, see observer.h.  After the train steps of a rollout, it fails unless each of
 * its samples was recorded once in this rollout and never before. */
ml_status ml_coverage_on(void *coverage, const ml_loop_event *e, ml_err *err);

#endif
