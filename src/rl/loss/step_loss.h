/* step_loss.h - the loss of one optimizer step, sample by sample.
 *
 * The samples of the step are known from the start: correction, divisors and denominator
 * are computed once over all of them.  Then the samples are trained in any order and any
 * packing; each leaves its sums in its own place, and the totals are folded in the order
 * of the samples at the end.  So loss and metrics have the same bits for any micro-batch.
 *
 * Everything is f64: log-probs, entropies and values that are f32 in the model are widened
 * without loss, and the derivatives are rounded once, on their way into the backward pass.
 *
 * thread: one at a time. */
#ifndef ML_RL_LOSS_STEP_LOSS_H
#define ML_RL_LOSS_STEP_LOSS_H

#include "base/arena.h"
#include "base/err.h"
#include "rl/recipe.h"

#define ML_STEP_METRIC_MAX (2 * MILES_METRIC_MAX)

typedef struct ml_step_loss {
    miles_algo num;
    const miles_loss *loss;
    miles_sample *sample; /* [n] copies; their arrays are the caller's */
    int64_t n;
    double *sample_divisor, *policy_divisor; /* [n] */
    double denominator;
    double *policy, *other;                  /* [n] a sample's sums */
    miles_metric metric[ML_STEP_METRIC_MAX]; /* the loss's, then the correction's */
    int32_t n_metric, n_loss_metric;
    double *loss_number;       /* [n, n_loss_metric] */
    double *correction_number; /* [n, n_metric - n_loss_metric] */
} ml_step_loss;

/* `loss` is the recipe's, or its critic's.  Arrays of the samples that are known already
 * (masks, old, rollout, reference log-probs, advantages, returns) must be there and stay;
 * the new log-probs, entropies and values come later.  Memory is from a. */
ml_status ml_step_loss_init(ml_step_loss *out, ml_arena *a, const ml_recipe *r,
                            const miles_loss *loss, const miles_batch *batch, ml_err *err);

/* What the model says about sample i now; NULL where the loss does not need it. */
typedef struct ml_model_says {
    const double *log_prob, *entropy, *value; /* [n] */
} ml_model_says;

/* Derivatives of the step's loss, one array for each that the model says. */
typedef struct ml_derivatives {
    double *log_prob, *entropy, *value; /* [n] */
} ml_derivatives;

ml_status ml_step_loss_sample(ml_step_loss *s, int64_t i, ml_model_says now,
                              ml_derivatives d, ml_err *err);

/* After the last sample.  metric[n_metric] stands in the order of s->metric. */
void ml_step_loss_totals(const ml_step_loss *s, double *loss, double *metric);

#endif
