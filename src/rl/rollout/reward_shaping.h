/* reward_shaping.h - rewards of a rollout batch that depend on lengths, or consist of several
 * numbers.
 *
 * In this order: the penalty of overlong answers (DAPO), a reward of short answers within
 * their group (Kimi k1.5), then, with reward keys, the normalisation of each number by itself
 * (GDPO) in place of that of the reward.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_REWARD_SHAPING_H
#define ML_RL_ROLLOUT_REWARD_SHAPING_H

#include "rl/record/metrics.h"
#include "rl/sample.h"

typedef struct ml_reward_shaping {
    int64_t max_response;
    int64_t overlong_buffer; /* the last tokens before max_response; 0: no penalty */
    double overlong_factor;  /* the penalty at max_response */
    double length_coef;      /* of the reward of short answers; 0: none */
    const char *const *key; /* [n_key] numbers of the reward: its own, "reward", or parts */
    const double *weight;   /* [n_key] */
    int32_t n_key;
} ml_reward_shaping;

/* Changes rewards, and sets the shaped ones if there are keys.  ML_EFORMAT: a sample's reward
 * does not have one of the numbers. */
ml_status ml_reward_shape(const ml_reward_shaping *o, ml_sample *const *s, int64_t n,
                          ml_metrics *metrics, ml_arena *a, ml_err *err);

#endif
