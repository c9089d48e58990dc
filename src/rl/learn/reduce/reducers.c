/* Divisors of the policy loss other than the length of the rollout. */
#include <stdio.h>

#include "rl/builtins.h"

/* Dr.  GRPO: a constant divisor, so that long answers weigh in proportion to their
 * length. */
static int run_drgrpo(const miles_batch *b, const miles_algo *algo, double denominator,
                      double *divisor, miles_error *err) {
    (void)denominator;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        divisor[i] = algo->calculate_per_token_loss ? 1.0 : algo->drgrpo_divisor;
    return 0;
}

/* DAPO: the mean over all trained tokens of the step.  The host also divides by
 * `denominator`, which is cancelled here. */
static int run_dapo(const miles_batch *b, const miles_algo *algo, double denominator,
                    double *divisor, miles_error *err) {
    int64_t n = 0;

    (void)algo;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            n += b->sample[i]->mask[t];
    for (int64_t i = 0; i < b->n; i++)
        divisor[i] = (double)(n ? n : 1) / denominator;
    return 0;
}

/* LUSPO: the sum over the tokens of a rollout, so that its weight grows with its length. */
static int run_luspo(const miles_batch *b, const miles_algo *algo, double denominator,
                     double *divisor, miles_error *err) {
    int64_t n = 0;

    (void)algo;
    (void)err;
    for (int64_t i = 0; i < b->n; i++) {
        bool first = true;
        for (int64_t j = 0; j < i && first; j++)
            first = b->sample[j]->rollout != b->sample[i]->rollout;
        n += first;
    }
    for (int64_t i = 0; i < b->n; i++)
        divisor[i] = (double)(n ? n : 1) / denominator;
    return 0;
}

const miles_reducer ml_reducer_luspo = {
    .base = { sizeof(miles_reducer), MILES_REDUCER, "luspo", NULL,
              "sum over the tokens of a rollout, mean over rollouts (LUSPO, with gspo)" },
    .run = run_luspo,
};

const miles_reducer ml_reducer_drgrpo = {
    .base = { sizeof(miles_reducer), MILES_REDUCER, "drgrpo",
              "examples.experimental.DrGRPO.custom_reducer.get_pg_loss_reducer",
              "sum over tokens divided by the constant --drgrpo-divisor (Dr.GRPO)" },
    .run = run_drgrpo,
};

const miles_reducer ml_reducer_dapo = {
    .base = { sizeof(miles_reducer), MILES_REDUCER, "dapo", "token-mean",
              "mean over all trained tokens of the step (DAPO)" },
    .run = run_dapo,
};
