/* kl.h - estimates of a KL divergence from the log-probs of sampled tokens.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_LOSS_KL_H
#define ML_RL_LEARN_LOSS_KL_H

#include "miles/plugin.h"

/* Log ratios are clamped to this range before they are exponentiated. */
#define ML_LOG_RATIO_MAX 20.0

typedef struct ml_kl {
    double value;
    double d; /* with respect to log_prob */
} ml_kl;

/* With `old`, the estimate is multiplied by exp(log_prob - *old), which makes it unbiased
 * for tokens sampled from an older policy; the derivative includes that factor. */
ml_kl ml_kl_estimate(miles_kl type, double log_prob, double base, const double *old);

/* Clamps x to +-ML_LOG_RATIO_MAX; NaN becomes 0. *inside: x was not clamped, so it has a
 * derivative. */
double ml_log_ratio_clamp(double x, bool *inside);

#endif
