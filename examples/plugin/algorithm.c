/* Extensions over numbers: rewards, advantages, corrections, losses. */
#include "example.h"

/* Every token's advantage is the reward times its position. */
static int ramp(const miles_batch *b, const miles_algo *algo, double *const *advantage,
                double *const *returns, miles_error *err) {
    (void)algo;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            advantage[i][t] = returns[i][t] = b->sample[i]->reward * (double)(t + 1);
    return 0;
}

static int32_t no_metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    (void)out;
    return 0;
}

/* Halves all weights. */
static int halve(const miles_batch *b, const miles_algo *algo, double *const *weight,
                 uint8_t *const *kept, double *metric, miles_error *err) {
    (void)algo;
    (void)kept;
    (void)metric;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            weight[i][t] = 0.5;
    return 0;
}

static int by_ten(const miles_batch *b, const miles_algo *algo, double denominator,
                  double *divisor, miles_error *err) {
    (void)algo;
    (void)denominator;
    (void)err;
    for (int64_t i = 0; i < b->n; i++)
        divisor[i] = 10.0;
    return 0;
}

static int32_t one_metric(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    out[0] = (miles_metric){ "tokens", MILES_MEAN_NONE };
    return 1;
}

/* -A log pi: plain REINFORCE, with the correction's weights. */
static int reinforce(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                     miles_error *err) {
    (void)algo;
    (void)err;
    for (int64_t t = 0; t < s->n; t++) {
        double w = s->weight ? s->weight[t] : 1.0;
        if (!s->kept[t])
            continue;
        out->policy -= w * s->advantage[t] * s->log_prob[t];
        out->d_log_prob[t] = -out->policy_scale * w * s->advantage[t];
        out->metric[0] += 1.0;
    }
    return 0;
}

/* The reward is the length of the response in bytes; an empty one cannot be graded. */
static int length(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    if (in->response_len == 0) {
        err->text[0] = '?';
        err->text[1] = 0;
        return 1;
    }
    out->reward = (double)in->response_len;
    return 0;
}

const miles_advantage example_ramp = { { sizeof(miles_advantage), MILES_ADVANTAGE, "ramp",
                                         0, "reward times token position" },
                                       0,
                                       ramp };
const miles_correction example_halve = { { sizeof(miles_correction), MILES_CORRECTION,
                                           "halve", 0, "half the weight for every token" },
                                         no_metrics,
                                         halve };
const miles_reducer example_by_ten = {
    { sizeof(miles_reducer), MILES_REDUCER, "by_ten", 0, "divides by ten" }, by_ten
};
const miles_loss example_reinforce = {
    { sizeof(miles_loss), MILES_LOSS, "reinforce", 0, "-A log pi" }, one_metric, reinforce
};

const miles_reward example_length = { { sizeof(miles_reward), MILES_REWARD, "length", 0,
                                        "length of the response in bytes" },
                                      length };
