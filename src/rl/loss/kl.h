/* kl.h - estimates of a KL divergence from the log-probs of sampled tokens.
 *
 * thread: any. */
#ifndef ML_RL_LOSS_KL_H
#define ML_RL_LOSS_KL_H

#include "miles/plugin.h"

/* Log ratios are held within this before they are exponentiated. */
#define ML_LOG_RATIO_MAX 20.0

typedef struct ml_kl {
    double value;
    double d; /* with respect to log_prob */
} ml_kl;

/* With `old`, the estimate is multiplied by exp(log_prob - *old), which makes it unbiased
 * for tokens that an older policy drew; the derivative goes through that factor too. */
ml_kl ml_kl_estimate(miles_kl type, double log_prob, double base, const double *old);

/* x within +-ML_LOG_RATIO_MAX, NaN as 0.  *inside: x was within, and has a derivative. */
double ml_log_ratio_clamp(double x, bool *inside);

#endif
