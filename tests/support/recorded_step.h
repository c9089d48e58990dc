/* recorded_step.h - an optimizer step on the samples of a recorded case.
 *
 * Totals are sums over samples, like the recorded values, before any scaling. */
#ifndef ML_TESTS_SUPPORT_RECORDED_STEP_H
#define ML_TESTS_SUPPORT_RECORDED_STEP_H

#include "rl/learn/loss/step_loss.h"
#include "tests/support/recording.h"

typedef struct ml_recorded_step {
    ml_recipe recipe;
    ml_record_batch b;
    ml_step_loss step;
    double **d_log_prob, **d_entropy, **d_value;
    double loss, metric[ML_STEP_METRIC_MAX];
} ml_recorded_step;

/* Needs recipe and b; `divisors` is a row of the samples' divisors, or null.  False: it
 * failed, and the failure was recorded. */
bool ml_recorded_step_run(ml_recorded_step *p, ml_case *c, const miles_loss *loss,
                          const ml_json *divisors);

double ml_recorded_step_metric(const ml_recorded_step *p, const char *name); /* NaN: none */

/* Takes the new log-probs from the recorded result. */
void ml_recorded_step_log_probs(ml_recorded_step *p, ml_case *c);

void ml_recorded_step_equal(ml_case *c, const ml_recorded_step *p, double *const *got,
                            const ml_json *want, ml_tolerance t, const char *what);

#endif
