/* reward_norm.h - rewards relative to their group.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_ADVANTAGE_REWARD_NORM_H
#define ML_RL_LEARN_ADVANTAGE_REWARD_NORM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

typedef struct ml_reward_row {
    int64_t group;   /* samples of one prompt share it */
    int64_t rollout; /* pieces of one conversation share it, and the reward */
    double reward;
} ml_reward_row;

/* out[i] = reward - mean of its group, and with `scale` that divided by the group's
 * standard deviation (n - 1) + 1e-6.  A rollout counts once, however many pieces it has.
 * Groups of one, and groups of equal rewards, come out as exactly 0.  ML_EFORMAT: the
 * pieces of a rollout differ in their reward. */
ml_status ml_rewards_normalise(double *out, const ml_reward_row *row, int64_t n, bool scale,
                               ml_err *err);

/* Metrics of the rollout: groups without a learning signal. */
typedef struct ml_zero_std {
    int64_t n_group;
    double all_zero, all_one; /* share of groups whose rewards all round to 0.0, 1.0 */
    int32_t n;
    struct {
        const char *reward; /* rounded to one decimal: "0.5" */
        int64_t count;
    } * equal; /* [n] groups of equal rewards, by that reward */
} ml_zero_std;

void ml_zero_std_count(ml_zero_std *out, ml_arena *a, const ml_reward_row *row, int64_t n);

#endif
