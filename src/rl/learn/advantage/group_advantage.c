/* Estimators that compare the rollouts of a group in other ways than grpo. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "rl/builtins.h"

/* The rollouts of a sample's group; a rollout of several samples counts once. */
typedef struct group {
    int64_t n, n_wrong; /* all; those without a reward above 0 */
} group;

static bool is_first(const miles_batch *b, int64_t i) {
    for (int64_t j = 0; j < i; j++)
        if (b->sample[j]->group == b->sample[i]->group &&
            b->sample[j]->rollout == b->sample[i]->rollout)
            return false;
    return true;
}

/* [n], to be freed; NULL: out of memory. */
static group *groups_of(const miles_batch *b, miles_error *err) {
    group *g = calloc((size_t)b->n + 1, sizeof *g);

    if (!g)
        snprintf(err->text, sizeof err->text, "out of memory");
    for (int64_t i = 0; g && i < b->n; i++) {
        if (!is_first(b, i))
            continue;
        for (int64_t j = 0; j < b->n; j++)
            if (b->sample[j]->group == b->sample[i]->group) {
                g[j].n++;
                g[j].n_wrong += b->sample[i]->reward <= 0.0;
            }
    }
    return g;
}

static void fill(const miles_sample *s, double x, double *advantage, double *returns) {
    for (int64_t t = 0; t < s->n; t++)
        advantage[t] = returns[t] = x;
}

/* The host has subtracted the mean of the group: r - mean of the others is that times
 * n / (n - 1). */
static int run_rloo(const miles_batch *b, const miles_algo *algo, double *const *advantage,
                    double *const *returns, miles_error *err) {
    group *g = groups_of(b, err);

    (void)algo;
    for (int64_t i = 0; g && i < b->n; i++) {
        double n = (double)g[i].n, x = b->sample[i]->reward;
        fill(b->sample[i], g[i].n > 1 ? x * n / (n - 1.0) : x, advantage[i], returns[i]);
    }
    free(g);
    return g == NULL;
}

/* C(n, k) / C(m, k) for n <= m. */
static double choose_ratio(int64_t n, int64_t m, int64_t k) {
    double x = 1.0;

    for (int64_t j = 0; j < k; j++)
        x *= n > j ? (double)(n - j) / (double)(m - j) : 0.0;
    return x;
}

/* The advantage of a rollout in random subsets of k of its group, each rewarded with its
 * best rollout (pass@k), in closed form. */
static double pass_at_k(const group *g, int64_t k, bool right) {
    double mean = 1.0 - choose_ratio(g->n_wrong, g->n, k);
    double spread = sqrt(mean * (1.0 - mean));

    if (spread == 0.0)
        return 0.0;
    if (right)
        return (1.0 - mean) / spread;
    return (1.0 - mean - choose_ratio(g->n_wrong - 1, g->n - 1, k - 1)) / spread;
}

static int run_pass_at_k(const miles_batch *b, const miles_algo *algo,
                         double *const *advantage, double *const *returns,
                         miles_error *err) {
    group *g = groups_of(b, err);
    bool bad = g == NULL;

    for (int64_t i = 0; i < b->n && !bad; i++) {
        bad = g[i].n < algo->pass_at_k;
        if (bad)
            snprintf(err->text, sizeof err->text,
                     "a group has %lld rollouts; expected at least --pass-at-k %lld",
                     (long long)g[i].n, (long long)algo->pass_at_k);
        else
            fill(b->sample[i],
                 pass_at_k(&g[i], algo->pass_at_k, b->sample[i]->reward > 0.0),
                 advantage[i], returns[i]);
    }
    free(g);
    return bad;
}

const miles_advantage ml_advantage_rloo = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "rloo", NULL,
              "the reward minus the mean of the others in its group (RLOO)" },
    .needs = MILES_CENTRE_REWARDS,
    .run = run_rloo,
};

const miles_advantage ml_advantage_pass_at_k = {
    .base = { sizeof(miles_advantage), MILES_ADVANTAGE, "pass_at_k", NULL,
              "the gain of pass@k over subsets of the group, for rewards above 0 or not" },
    .needs = 0,
    .run = run_pass_at_k,
};
