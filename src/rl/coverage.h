/* witness.h - that every sample of a round taught the model once, and only once.
 *
 * A row is written when the derivative of the loss by a sample's log-probs enters the
 * backward pass of an optimizer step: not from the schedule, which could be wrong, but where
 * it happens.  Rows of earlier rounds are kept as far as there is room, so that a sample
 * which comes again later is found, too.
 *
 * thread: the trainer's. */
#ifndef ML_RL_COVERAGE_H
#define ML_RL_COVERAGE_H

#include "base/err.h"
#include "rl/events.h"

typedef struct ml_coverage ml_coverage;

/* Room for so many samples, at least those of a round. */
ml_status ml_coverage_open(ml_coverage **out, int64_t n_row, ml_events *events,
                           ml_err *err);
void ml_coverage_close(ml_coverage *w); /* NULL is fine */

/* The gradient of this sample is used in this step; weight: the sum of its magnitudes. */
void ml_coverage_see(ml_coverage *w, int64_t sample, int64_t rollout, int64_t step,
                     double weight);

/* At the end of a round's steps: these samples were seen, once each, and never before. */
ml_status ml_coverage_judge(ml_coverage *w, const int64_t *sample, int64_t n,
                            int64_t rollout, ml_err *err);

#endif
