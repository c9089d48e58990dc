#include "rl/rollout/reward_shaping.h"

#include <string.h>

#include "rl/builtins.h"
#include "rl/learn/advantage/reward_norm.h"

/* The length of a sample's rollout: that of its longest piece, since all pieces have one
 * reward. */
static int64_t length_of(const ml_sample *x, ml_sample *const *s, int64_t n) {
    int64_t most = x->n_response;

    if (x->rollout == x->index)
        return most;
    for (int64_t i = 0; i < n; i++)
        if (s[i]->rollout == x->rollout && s[i]->n_response > most)
            most = s[i]->n_response;
    return most;
}

static double mean(const double *x, int64_t n) {
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : 0.0;
}

static void add_all(ml_sample *const *s, const double *by, int64_t n, const char *name,
                    ml_metrics *metrics) {
    for (int64_t i = 0; i < n; i++)
        if (s[i]->has_reward)
            s[i]->reward += by[i];
    ml_metrics_add(metrics, "rollout/", name, mean(by, n));
}

/* --- overlong answers ------------------------------------------------------------- */

static double overlong(const ml_reward_shaping *o, int64_t length) {
    int64_t beyond = length - (o->max_response - o->overlong_buffer);

    return beyond > 0 ? -(double)beyond / (double)o->overlong_buffer * o->overlong_factor
                      : 0.0;
}

/* --- short answers ---------------------------------------------------------------- */

/* From 0.5 for the shortest answer of the group to -0.5 for the longest; wrong answers are
 * not rewarded for being short. */
static double shortness(const ml_sample *x, const int64_t *length, int64_t at,
                        ml_sample *const *s, int64_t n) {
    int64_t least = length[at], most = length[at];
    double value;

    for (int64_t i = 0; i < n; i++)
        if (s[i]->group == x->group) {
            least = length[i] < least ? length[i] : least;
            most = length[i] > most ? length[i] : most;
        }
    if (most == least)
        return 0.0;
    value = 0.5 - (double)(length[at] - least) / (double)(most - least);
    return x->reward > 0.0 || value < 0.0 ? value : 0.0;
}

static void shape_lengths(const ml_reward_shaping *o, ml_sample *const *s, int64_t n,
                          ml_metrics *metrics, ml_arena *a) {
    int64_t *length = ML_NEW(a, int64_t, n + 1);
    double *by = ML_NEW(a, double, n + 1), *shorter = ML_NEW(a, double, n + 1);

    for (int64_t i = 0; i < n; i++)
        length[i] = length_of(s[i], s, n);
    for (int64_t i = 0; i < n; i++) {
        by[i] = o->overlong_buffer ? overlong(o, length[i]) : 0.0;
        shorter[i] =
            o->length_coef != 0.0 ? o->length_coef * shortness(s[i], length, i, s, n) : 0.0;
    }
    if (o->overlong_buffer)
        add_all(s, by, n, "overlong_penalty", metrics);
    if (o->length_coef != 0.0)
        add_all(s, shorter, n, "length_reward", metrics);
}

/* --- several numbers --------------------------------------------------------------- */

static bool find(const ml_sample *s, const char *key, double *out) {
    if (strcmp(key, "reward") == 0) {
        *out = s->reward;
        return s->has_reward;
    }
    for (int32_t i = 0; i < s->n_part; i++)
        if (strcmp(s->part[i].name, key) == 0) {
            *out = s->part[i].value;
            return true;
        }
    return false;
}

static ml_status add_key(const ml_reward_shaping *o, int32_t k, double *sum,
                         ml_sample *const *s, int64_t n, ml_arena *a, ml_err *err) {
    ml_reward_row *row = ML_NEW(a, ml_reward_row, n + 1);
    double *out = ML_NEW(a, double, n + 1);
    ml_status st;

    for (int64_t i = 0; i < n; i++) {
        row[i] = (ml_reward_row){ s[i]->group, s[i]->rollout, 0.0 };
        if (!find(s[i], o->key[k], &row[i].reward))
            return ml_fail(err, ML_EFORMAT,
                           "--gdpo-reward-keys: the reward of sample %lld has no \"%s\"",
                           (long long)s[i]->index, o->key[k]);
    }
    st = ml_rewards_normalise(out, row, n, true, err);
    for (int64_t i = 0; i < n && st == ML_OK; i++)
        sum[i] += o->weight[k] * out[i];
    return st;
}

static ml_status shape_keys(const ml_reward_shaping *o, ml_sample *const *s, int64_t n,
                            ml_arena *a, ml_err *err) {
    double *sum = ML_NEW(a, double, n + 1);
    ml_status st = ML_OK;

    for (int32_t k = 0; k < o->n_key && st == ML_OK; k++)
        st = add_key(o, k, sum, s, n, a, err);
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        s[i]->shaped = sum[i];
        s[i]->has_shaped = true;
    }
    return st;
}

ml_status ml_reward_shape(const ml_reward_shaping *o, ml_sample *const *s, int64_t n,
                          ml_metrics *metrics, ml_arena *a, ml_err *err) {
    if (o->overlong_buffer || o->length_coef != 0.0)
        shape_lengths(o, s, n, metrics, a);
    return o->n_key ? shape_keys(o, s, n, a, err) : ML_OK;
}

/* --- overlong filtering ------------------------------------------------------------ */

static int truncated(const miles_answers *round, uint8_t *remove, miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < round->n; i++)
        remove[i] = round->answer[i]->status == MILES_TRUNCATED;
    return 0;
}

const miles_sample_filter ml_filter_truncated = {
    { sizeof(miles_sample_filter), MILES_SAMPLE_FILTER, "drop_truncated", NULL,
      "does not train on answers that reached the maximum length (overlong filtering)" },
    truncated
};
