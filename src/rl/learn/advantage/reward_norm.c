#include "rl/learn/advantage/reward_norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A row with its position, so that rows can be sorted and restored. */
typedef struct placed {
    ml_reward_row of;
    int64_t at;
} placed;

static int compare_i64(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* By group, rollout and position: a total order, so that sums always have the same
 * order. */
static int by_group(const void *a, const void *b) {
    const placed *x = a, *y = b;
    int c = compare_i64(x->of.group, y->of.group);

    if (!c)
        c = compare_i64(x->of.rollout, y->of.rollout);
    return c ? c : compare_i64(x->at, y->at);
}

static placed *in_groups(ml_arena *a, const ml_reward_row *row, int64_t n) {
    placed *p = ML_NEW(a, placed, n + 1);

    for (int64_t i = 0; i < n; i++)
        p[i] = (placed){ row[i], i };
    qsort(p, (size_t)n, sizeof *p, by_group);
    return p;
}

static int64_t group_end(const placed *p, int64_t i, int64_t n) {
    int64_t end = i + 1;

    while (end < n && p[end].of.group == p[i].of.group)
        end++;
    return end;
}

static bool continues_rollout(const placed *p, int64_t i) {
    return i > 0 && p[i].of.rollout == p[i - 1].of.rollout;
}

static ml_status check_rollouts(const placed *p, int64_t n, ml_err *err) {
    for (int64_t i = 1; i < n; i++)
        if (continues_rollout(p, i) && p[i].of.reward != p[i - 1].of.reward)
            return ml_fail(err, ML_EFORMAT,
                           "rollout %lld has parts with rewards %g and %g: all parts of a "
                           "rollout must have the same reward",
                           (long long)p[i].of.rollout, p[i - 1].of.reward, p[i].of.reward);
    return ML_OK;
}

/* Subtracts the group's first reward before summing: the mean of equal rewards is then
 * exactly that reward. */
static void normalise_group(double *out, const placed *p, int64_t n, bool scale) {
    double first = p[0].of.reward, sum = 0.0, squares = 0.0, mean, std = 0.0;
    int64_t n_rollout = 0;

    for (int64_t i = 0; i < n; i++)
        if (!continues_rollout(p, i)) {
            sum += p[i].of.reward - first;
            n_rollout++;
        }
    mean = sum / (double)n_rollout;
    for (int64_t i = 0; i < n; i++) {
        double d = p[i].of.reward - first - mean;
        if (!continues_rollout(p, i))
            squares += d * d;
        out[p[i].at] = d;
    }
    if (n_rollout > 1)
        std = sqrt(squares / (double)(n_rollout - 1));
    for (int64_t i = 0; scale && std > 0.0 && i < n; i++)
        out[p[i].at] /= std + 1e-6;
}

ml_status ml_rewards_normalise(double *out, const ml_reward_row *row, int64_t n, bool scale,
                               ml_err *err) {
    ml_arena a;
    placed *p;
    ml_status st = ML_OK;

    ml_arena_init(&a, "rewards");
    p = in_groups(&a, row, n);
    for (int64_t i = 0, end; i < n && st == ML_OK; i = end) {
        end = group_end(p, i, n);
        st = check_rollouts(p + i, end - i, err);
        if (st == ML_OK)
            normalise_group(out, p + i, end - i, scale);
    }
    ml_arena_release(&a);
    return st;
}

/* --- groups of equal rewards ------------------------------------------------ */

static bool all_equal(const placed *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (p[i].of.reward != p[0].of.reward)
            return false;
    return true;
}

static void count_one(ml_zero_std *z, ml_arena *a, double reward) {
    char text[400];
    int len = snprintf(text, sizeof text, "%.1f", reward);
    int32_t i = 0;

    while (i < z->n && strcmp(z->equal[i].reward, text) != 0)
        i++;
    if (i == z->n) {
        z->equal[i].reward = ml_arena_str(a, text, (size_t)len);
        z->n++;
    }
    z->equal[i].count++;
}

static double share(const ml_zero_std *z, const char *reward) {
    for (int32_t i = 0; i < z->n; i++)
        if (strcmp(z->equal[i].reward, reward) == 0)
            return (double)z->equal[i].count / (double)z->n_group;
    return 0.0;
}

void ml_zero_std_count(ml_zero_std *out, ml_arena *a, const ml_reward_row *row, int64_t n) {
    placed *p = in_groups(a, row, n);

    *out = (ml_zero_std){ 0 };
    out->equal = ml_arena_take(a, (size_t)n + 1, sizeof *out->equal);
    for (int64_t i = 0, end; i < n; i = end, out->n_group++) {
        end = group_end(p, i, n);
        if (all_equal(p + i, end - i))
            count_one(out, a, p[i].of.reward);
    }
    out->all_zero = share(out, "0.0");
    out->all_one = share(out, "1.0");
}
