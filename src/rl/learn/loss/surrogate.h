/* surrogate.h - the policy loss of one token.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_LOSS_SURROGATE_H
#define ML_RL_LEARN_LOSS_SURROGATE_H

#include "miles/plugin.h"

typedef struct ml_surrogate {
    double value;
    double d_log_ratio; /* derivative through the ratio of new and old policy */
    double d_log_prob;  /* derivative through the log-prob itself */
    bool clipped;
} ml_surrogate;

/* ratio = exp(log_ratio), with the log ratio clamped to +-20. */
typedef ml_surrogate ml_surrogate_fn(double log_ratio, double log_prob, double advantage,
                                     const miles_algo *algo);

/* max(-ratio A, -clip(ratio) A), and with eps_clip_c at most -eps_clip_c A where A < 0. */
ml_surrogate_fn ml_surrogate_ppo;

/* CISPO: -clip(ratio) A log_prob, with the ratio as a constant (stop-gradient), so clipped
 * tokens keep a gradient. */
ml_surrogate_fn ml_surrogate_cispo;

#endif
