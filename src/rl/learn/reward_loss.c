#include "rl/learn/reward_loss.h"

#include <math.h>

#include "base/bug.h"
#include "rl/builtins.h"

/* --- pairs ------------------------------------------------------------------------ */

static double *put(ml_arena *a, const ml_preference_row *x, double d) {
    double *number = ML_NEW(a, double, ML_PREFERENCE_NUMBERS);
    double *advantage = ML_NEW(a, double, 1);

    advantage[0] = -d;
    x->row->advantage = advantage;
    x->row->preference = number;
    return number;
}

static void compute_pair(ml_arena *a, const ml_preference_opts *o,
                         const ml_preference_row *pair) {
    double c = pair[0].row->old_value[0], r = pair[1].row->old_value[0];
    double h = c - r - pair[0].row->reward, d = -ml_sigmoid(-h);
    double center = 2 * o->center * (c + r);
    double *first = put(a, &pair[0], d + center), *second = put(a, &pair[1], center - d);

    first[ML_PREFERENCE_LOSS] = -ml_log_sigmoid(h) + o->center * (c + r) * (c + r);
    first[ML_PREFERENCE_CHOSEN] = c;
    second[ML_PREFERENCE_REJECTED] = r;
    first[ML_PREFERENCE_MARGIN] = c - r;
    first[ML_PREFERENCE_ACCURACY] = c > r;
}

ml_status ml_reward_pairs_compute(ml_arena *a, const ml_preference_opts *o,
                                  const ml_preference_row *row, int64_t n, ml_err *err) {
    if (n % 2)
        return ml_fail(err, ML_EFORMAT, "a batch of %lld samples is not one of pairs",
                       (long long)n);
    for (int64_t i = 0; i < n; i++)
        ML_BUG_IF(row[i].row->n != 1 || !row[i].row->old_value);
    for (int64_t i = 0; i < n; i += 2)
        compute_pair(a, o, &row[i]);
    return ML_OK;
}

static int32_t pair_metrics(const miles_algo *algo, miles_metric *out) {
    static const char *const name[] = { "rewards/chosen", "rewards/rejected",
                                        "rewards/margins", "rewards/accuracies" };
    (void)algo;
    for (int i = 0; i < ML_PREFERENCE_ACCURACY; i++)
        out[i] = (miles_metric){ name[i], MILES_MEAN_POLICY };
    return ML_PREFERENCE_ACCURACY;
}

static int run_pair(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                    miles_error *err) {
    (void)algo, (void)err;
    ML_BUG_IF(!s->preference || !s->advantage);
    out->policy = s->preference[ML_PREFERENCE_LOSS];
    for (int i = 0; i < ML_PREFERENCE_ACCURACY; i++)
        out->metric[i] = s->preference[i + 1];
    out->d_value[0] = -s->advantage[0] * out->policy_scale;
    return 0;
}

const miles_loss ml_loss_reward_pairs = {
    .base = { sizeof(miles_loss), MILES_LOSS, "reward_pairs_loss", NULL,
              "pairs of answers: the loss of miles reward-model" },
    .metrics = pair_metrics,
    .run = run_pair,
};

/* --- labels ----------------------------------------------------------------------- */

static int32_t label_metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    out[0] = (miles_metric){ "rewards/mean", MILES_MEAN_POLICY };
    out[1] = (miles_metric){ "rewards/error", MILES_MEAN_POLICY };
    return 2;
}

static int run_label(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                     miles_error *err) {
    double e;

    (void)algo, (void)err;
    ML_BUG_IF(s->n != 1 || !s->value);
    e = s->value[0] - s->reward;
    out->policy = e * e;
    out->metric[0] = s->value[0];
    out->metric[1] = fabs(e);
    out->d_value[0] = 2 * e * out->policy_scale;
    return 0;
}

const miles_loss ml_loss_reward_labels = {
    .base = { sizeof(miles_loss), MILES_LOSS, "reward_labels_loss", NULL,
              "squared error of rewards: the loss of miles reward-model" },
    .metrics = label_metrics,
    .run = run_label,
};
