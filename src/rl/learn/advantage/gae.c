/* PPO: generalised advantage estimation (Schulman et al., 2015) over the trained tokens
 * of a response.  Masked tokens (tool output) are skipped: they neither decay nor
 * bootstrap. */
#include <stdio.h>

#include "rl/builtins.h"

static void estimate(const miles_sample *s, const miles_algo *algo, double *advantage,
                     double *returns) {
    double next_value = 0.0, next_advantage = 0.0, terminal = s->reward;

    for (int64_t t = s->n - 1; t >= 0; t--) {
        double reward, delta;
        advantage[t] = returns[t] = 0.0;
        if (!s->mask[t])
            continue;
        reward = (s->kl ? -algo->kl_coef * s->kl[t] : 0.0) + terminal;
        terminal = 0.0; /* only the last trained token gets it */
        delta = reward + algo->gamma * next_value - s->old_value[t];
        advantage[t] = delta + algo->gamma * algo->lambd * next_advantage;
        returns[t] = advantage[t] + s->old_value[t];
        next_value = s->old_value[t];
        next_advantage = advantage[t];
    }
}

static int run(const miles_batch *b, const miles_algo *algo, double *const *advantage,
               double *const *returns, miles_error *err) {
    for (int64_t i = 0; i < b->n; i++) {
        if (!b->sample[i]->old_value && b->sample[i]->n) {
            snprintf(err->text, sizeof err->text,
                     "sample %lld has no values: the estimator ppo needs a critic",
                     (long long)i);
            return 1;
        }
        estimate(b->sample[i], algo, advantage[i], returns[i]);
    }
    return 0;
}

const miles_advantage ml_advantage_ppo = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "ppo", NULL,
              "generalised advantage estimation with a critic" },
    .needs = MILES_NEEDS_VALUES | MILES_USES_KL,
    .run = run,
};
