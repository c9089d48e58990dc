/* reward_loss.h - the losses of miles reward-model.
 *
 * A reward model has one number per token (ml_spec.reward); the reward r of a conversation is
 * the number at its last token.  With c the chosen and r the rejected answer of a pair:
 *
 *   pairs    -log sigmoid(rc - rr - margin) + center (rc + rr)^2    Bradley and Terry, 1952;
 *            margin: Touvron et al., 2023; center: Eisenstein et al., 2023
 *   labels   (r - label)^2
 *
 * The loss of a step is the mean over its pairs, or conversations.  Both rewards of a pair are
 * computed with the weights of the step before it (see preference.h).
 *
 * thread: any. */
#ifndef ML_RL_LEARN_REWARD_LOSS_H
#define ML_RL_LEARN_REWARD_LOSS_H

#include "rl/learn/preference.h"

/* row [n]: chosen and rejected in turn, each with one token, whose `old_value` is the reward;
 * `reward` of a chosen one is the margin.  Sets `advantage`, the negative derivative, and
 * `preference`. */
ml_status ml_reward_pairs_compute(ml_arena *a, const ml_preference_opts *o,
                                  const ml_preference_row *row, int64_t n, ml_err *err);

#endif
