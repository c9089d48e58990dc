#include "rl/record/sample_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rl/learn/advantage/reward_norm.h"

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

void ml_metrics_statistics(ml_metrics *f, const char *prefix, double *value, int64_t n) {
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += value[i];
    qsort(value, (size_t)n, sizeof *value, by_value);
    ml_metrics_add(f, prefix, "mean", sum / (double)n);
    ml_metrics_add(f, prefix, "median", (value[(n - 1) / 2] + value[n / 2]) / 2);
    ml_metrics_add(f, prefix, "max", value[n - 1]);
    ml_metrics_add(f, prefix, "min", value[0]);
}

static int32_t effective_length(const ml_sample *s) {
    int32_t n = 0;
    for (int32_t t = 0; s->mask && t < s->n_response; t++)
        n += s->mask[t];
    return s->mask ? n : s->n_response;
}

void ml_metrics_lengths(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                        int64_t n) {
    double *length = ML_NEW(f->arena, double, n + 1), truncated = 0;
    const char *lengths = ml_arena_printf(f->arena, "%sresponse_len/", prefix);

    if (n == 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        length[i] = effective_length(s[i]);
        truncated += s[i]->status == ML_SAMPLE_TRUNCATED;
    }
    ml_metrics_statistics(f, lengths, length, n);
    ml_metrics_add(f, prefix, "truncated_ratio", truncated / (double)n);
}

/* The sample's part of that name; NULL: none. */
static const ml_reward_value *part_of(const ml_sample *s, const char *name) {
    for (int32_t i = 0; i < s->n_part; i++)
        if (strcmp(s->part[i].name, name) == 0)
            return &s->part[i];
    return NULL;
}

static bool seen_before(const ml_sample *const *s, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if (part_of(s[i], name))
            return true;
    return false;
}

void ml_metrics_parts(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                      int64_t n) {
    const char *parts = ml_arena_printf(f->arena, "%sreward/", prefix);

    for (int64_t i = 0; i < n; i++)
        for (int32_t k = 0; k < s[i]->n_part; k++) {
            const char *name = s[i]->part[k].name;
            double sum = 0.0, count = 0.0;
            if (part_of(s[i], name) != &s[i]->part[k] || seen_before(s, i, name))
                continue;
            for (int64_t j = i; j < n; j++) {
                const ml_reward_value *v = part_of(s[j], name);
                sum += v ? v->value : 0.0;
                count += v != NULL;
            }
            ml_metrics_add(f, parts, name, sum / count);
        }
}

/* NAME_mean, _max and _min of n > 0 values. */
static void add_range(ml_metrics *f, const char *name, const double *value, int64_t n) {
    double sum = 0.0, max = value[0], min = value[0];

    for (int64_t i = 0; i < n; i++) {
        sum += value[i];
        max = value[i] > max ? value[i] : max;
        min = value[i] < min ? value[i] : min;
    }
    ml_metrics_add(f, name, "_mean", sum / (double)n);
    ml_metrics_add(f, name, "_max", max);
    ml_metrics_add(f, name, "_min", min);
}

void ml_metrics_turns(ml_metrics *f, const ml_sample *const *s, int64_t n) {
    double *all = ML_NEW(f->arena, double, n + 1), *own = ML_NEW(f->arena, double, n + 1);
    double *turns = ML_NEW(f->arena, double, n + 1);

    if (n == 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        all[i] = s[i]->n_response;
        own[i] = effective_length(s[i]);
        turns[i] = s[i]->n_turn;
    }
    add_range(f, "multi_turn/raw_response_length/response_length", all, n);
    add_range(f, "multi_turn/wo_obs_response_length/response_length", own, n);
    add_range(f, "multi_turn/multi_turn_metric/round_number", turns, n);
}

/* Number of samples from i on that belong to its group. */
static int64_t group_at(const ml_sample *const *s, int64_t n, int64_t i) {
    int64_t end = i;
    while (end < n && s[end]->group == s[i]->group)
        end++;
    return end - i;
}

void ml_metrics_zero_std(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                         int64_t n) {
    ml_reward_row *row = ML_NEW(f->arena, ml_reward_row, n + 1);
    ml_zero_std z;

    for (int64_t i = 0; i < n; i++)
        row[i] = (ml_reward_row){ s[i]->group, s[i]->rollout, s[i]->reward };
    ml_zero_std_count(&z, f->arena, row, n);
    for (int32_t i = 0; i < z.n; i++) {
        char name[60];
        snprintf(name, sizeof name, "zero_std/count_%s", z.equal[i].reward);
        ml_metrics_add(f, prefix, name, (double)z.equal[i].count);
    }
    ml_metrics_add(f, prefix, "zero_std/all_zero_percentage", z.all_zero);
    ml_metrics_add(f, prefix, "zero_std/all_one_percentage", z.all_one);
}

/* The unbiased pass@k estimator: 1 - the probability that k of n answers, drawn without
 * replacement, are all wrong. */
static double pass_at(int64_t k, int64_t n, int64_t n_right) {
    double all_wrong = 1.0;

    if (n - n_right < k)
        return 1.0;
    for (int64_t i = n - n_right + 1; i <= n; i++)
        all_wrong *= 1.0 - (double)k / (double)i;
    return 1.0 - all_wrong;
}

void ml_metrics_pass_rate(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                          int64_t n, int32_t n_per_group) {
    for (int64_t k = 1; n_per_group > 1 && k <= n_per_group; k *= 2) {
        double sum = 0, n_group = 0;
        char name[40];
        for (int64_t i = 0, size; i < n; i += size) {
            int64_t right = 0;
            size = group_at(s, n, i);
            for (int64_t j = 0; j < size; j++)
                right += s[i + j]->reward == 1;
            if (size != n_per_group)
                continue;
            sum += pass_at(k, size, right);
            n_group++;
        }
        snprintf(name, sizeof name, "pass@%lld", (long long)k);
        if (n_group > 0)
            ml_metrics_add(f, prefix, name, sum / n_group);
    }
}
