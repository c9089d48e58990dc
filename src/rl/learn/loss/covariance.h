/* covariance.h - the tokens of a step whose advantage and log-prob vary together most.
 *
 * Their covariance, (A - mean A)(lp - mean lp) over the trained tokens of the step, drives the
 * loss of entropy (Cui et al., The Entropy Mechanism of Reinforcement Learning for Reasoning
 * Language Models, 2025).  lp is the old policy's: all tokens are chosen before the first of
 * them is trained, so the choice does not depend on micro-batches.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_LOSS_COVARIANCE_H
#define ML_RL_LEARN_LOSS_COVARIANCE_H

#include "base/arena.h"
#include "base/err.h"
#include "miles/plugin.h"

/* chosen[i][t] = 1 for max(1, clip_cov_ratio n) of the n tokens, drawn from those whose
 * covariance is between clip_cov_lb and clip_cov_ub: the draw is a function of rollout and
 * position. */
ml_status ml_covariance_clip(uint8_t *const *chosen, const miles_batch *b,
                             const miles_algo *algo, ml_arena *a, ml_err *err);

/* The same for the max(1, kl_cov_ratio n) tokens with the largest covariance. */
ml_status ml_covariance_largest(uint8_t *const *chosen, const miles_batch *b,
                                const miles_algo *algo, ml_arena *a, ml_err *err);

#endif
