/* REINFORCE++: discounted sums of a reward at the end and a KL penalty at every token; and
 * the variant with a baseline, for which the host has subtracted the group's mean. */
#include <stdio.h>

#include "rl/builtins.h"

static double penalty(const miles_sample *s, const miles_algo *algo, int64_t t) {
    return s->kl ? -algo->kl_coef * s->kl[t] : 0.0;
}

static int64_t last_trained(const miles_sample *s) {
    int64_t t = s->n - 1;

    while (t >= 0 && !s->mask[t])
        t--;
    return t;
}

static int run(const miles_batch *b, const miles_algo *algo, double *const *advantage,
               double *const *returns, miles_error *err) {
    for (int64_t i = 0; i < b->n; i++) {
        const miles_sample *s = b->sample[i];
        int64_t last = last_trained(s);
        double sum = 0.0;

        if (last < 0) {
            snprintf(err->text, sizeof err->text,
                     "sample %lld has no trained token to carry its reward: remove it, or "
                     "use another --advantage-estimator",
                     (long long)i);
            return 1;
        }
        for (int64_t t = s->n - 1; t >= 0; t--) {
            double reward = penalty(s, algo, t) + (t == last ? s->reward : 0.0);
            sum = reward + algo->gamma * sum;
            advantage[i][t] = returns[i][t] = sum;
        }
    }
    return 0;
}

static int run_baseline(const miles_batch *b, const miles_algo *algo,
                        double *const *advantage, double *const *returns,
                        miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            advantage[i][t] = returns[i][t] =
                b->sample[i]->reward + penalty(b->sample[i], algo, t);
    return 0;
}

const miles_advantage ml_advantage_reinforce_pp = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "reinforce_plus_plus", NULL,
              "discounted sum of the final reward and the KL penalty" },
    .needs = MILES_WHITEN | MILES_USES_KL,
    .run = run,
};

const miles_advantage ml_advantage_reinforce_pp_baseline = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "reinforce_plus_plus_baseline",
              NULL, "reward minus the group's mean, minus the KL penalty" },
    .needs =
        MILES_CENTRE_REWARDS | MILES_WHITEN | MILES_RETURNS_ARE_ADVANTAGES | MILES_USES_KL,
    .run = run_baseline,
};
