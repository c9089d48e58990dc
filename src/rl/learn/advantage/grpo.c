/* GRPO and GSPO: every token of a response has the response's reward, which the host has
 * normalised within the group.  GSPO differs only in the loss: one ratio per response. */
#include "rl/builtins.h"

static int run(const miles_batch *b, const miles_algo *algo, double *const *advantage,
               double *const *returns, miles_error *err) {
    (void)algo;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            advantage[i][t] = returns[i][t] = b->sample[i]->reward;
    return 0;
}

const miles_advantage ml_advantage_grpo = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "grpo", NULL,
              "the reward relative to its group, for every token" },
    .needs = MILES_CENTRE_REWARDS | MILES_SCALE_REWARDS,
    .run = run,
};

const miles_advantage ml_advantage_gspo = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "gspo", NULL,
              "as grpo, with one importance ratio per response" },
    .needs = MILES_CENTRE_REWARDS | MILES_SCALE_REWARDS | MILES_SEQUENCE_RATIO,
    .run = run,
};
