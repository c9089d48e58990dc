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

/* -ratio A, without a clip. */
ml_surrogate_fn ml_surrogate_plain;

/* SAPO: -f(ratio) A with f(x) = 4 / tau sigmoid(tau (x - 1)), whose derivative at 1 is 1; tau
 * is a temperature for A > 0 and another for the rest. */
ml_surrogate_fn ml_surrogate_sapo;

/* VESPO: -phi A log_prob, phi(w) = e^lambda w^k e^(-lambda w) a constant, w the ratio of the
 * whole sequence; k and lambda for A >= 0 and for A < 0.  log_ratio is log w. */
ml_surrogate_fn ml_surrogate_vespo;

/* GMPO: the log ratio of a token, bounded by the clip range on the side to which its
 * advantage pushes it.  *moves: it is not bounded. */
double ml_gmpo_log_ratio(double log_ratio, double advantage, const miles_algo *algo,
                         bool *moves);

#endif
