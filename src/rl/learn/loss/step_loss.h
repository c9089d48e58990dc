/* step_loss.h - the loss of one optimizer step, computed sample by sample.
 *
 * All samples of the step are known at the start: correction, divisors and denominator are
 * computed once over all of them.  The samples may then be trained in any order and any
 * packing; each writes its sums to its own element, and the totals are added in the order
 * of the samples at the end.  So loss and metrics have the same bits for any micro-batch
 * size.
 *
 * Everything is f64: f32 log-probs, entropies and values of the model are converted
 * without loss, and the derivatives are rounded once, before the backward pass.
 *
 * thread: one at a time. */
#ifndef ML_RL_LEARN_LOSS_STEP_LOSS_H
#define ML_RL_LEARN_LOSS_STEP_LOSS_H

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
    double *policy, *other;                  /* [n] sums of each sample */
    miles_metric metric[ML_STEP_METRIC_MAX]; /* of the loss, then of the correction */
    int32_t n_metric, n_loss_metric;
    double *loss_number;       /* [n, n_loss_metric] */
    double *correction_number; /* [n, n_metric - n_loss_metric] */
    /* A further loss of a hook (miles_step.loss); NULL: none.  Its derivatives [longest]. */
    int (*more)(const miles_sample *sample, const miles_algo *algo, miles_loss_out *out,
                miles_error *err);
    double *more_d_log_prob, *more_d_entropy;
} ml_step_loss;

/* `loss` is the recipe's, or its critic's.  The arrays known in advance (masks, old,
 * rollout and reference log-probs, advantages, returns) must be set and stay valid; the
 * new log-probs, entropies and values are passed later.  Memory is allocated from a. */
ml_status ml_step_loss_init(ml_step_loss *out, ml_arena *a, const ml_recipe *r,
                            const miles_loss *loss, const miles_batch *batch, ml_err *err);

/* Adds the loss of a hook to that of each sample. */
void ml_step_loss_add(ml_step_loss *s, ml_arena *a,
                      int (*more)(const miles_sample *sample, const miles_algo *algo,
                                  miles_loss_out *out, miles_error *err));

/* The model's current outputs for sample i; NULL if the loss does not need them. */
typedef struct ml_model_outputs {
    const double *log_prob, *entropy, *value; /* [n] */
    const double *full_log_prob;              /* NULL: as log_prob */
} ml_model_outputs;

/* Derivatives of the step's loss, one array for each output of the model. */
typedef struct ml_derivatives {
    double *log_prob, *entropy, *value; /* [n] */
    double *full_log_prob;
} ml_derivatives;

ml_status ml_step_loss_sample(ml_step_loss *s, int64_t i, ml_model_outputs now,
                              ml_derivatives d, ml_err *err);

/* Call after the last sample. metric[n_metric] is in the order of s->metric. */
void ml_step_loss_totals(const ml_step_loss *s, double *loss, double *metric);

#endif
