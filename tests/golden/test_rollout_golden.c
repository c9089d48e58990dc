/* Filters and metrics of a round against what Miles' own code gave. */
#include <stdio.h>
#include <string.h>

#include "plugin/extension.h"
#include "rl/rollout/group_filter.h"
#include "rl/learn/reduce/divisors.h"
#include "rl/record/sample_metrics.h"
#include "rl/learn/train_rows.h"
#include "rl/loop/iteration.h"
#include "tests/support/recording.h"
#include "tests/support/test.h"

static const ml_tolerance f64 = { 1e-12, 1e-15 };

/* Samples with these rewards, in groups of n_per_group. */
static const ml_sample **samples_of(ml_case *c, const ml_json *rewards,
                                    int64_t n_per_group) {
    ml_sample *s = ML_NEW(&c->arena, ml_sample, rewards->n + 1);
    const ml_sample **list = ML_NEW(&c->arena, const ml_sample *, rewards->n + 1);
    const double *x = ml_record_row(c, rewards);

    for (int32_t i = 0; i < rewards->n; i++) {
        s[i] = (ml_sample){ .reward = x[i],
                            .has_reward = true,
                            .group = i / n_per_group,
                            .status = ML_SAMPLE_COMPLETED };
        list[i] = &s[i];
    }
    return list;
}

static void play_pass_rate(ml_case *c) {
    const ml_json *rewards = ml_json_get(c->args, "flat_rewards"),
                  *want = ml_json_get(c->out, "pass_rate");
    int64_t size = ml_case_i64(c->args, "group_size", 1);
    ml_metrics f;
    int32_t n = 0;

    if (!want) /* a refusal of arguments that cannot come up here */
        return;
    ml_metrics_init(&f, &c->arena);
    ml_metrics_pass_rate(&f, "", samples_of(c, rewards, size), rewards->n, (int32_t)size);
    for (const ml_metric *row = f.first; row; row = row->next, n++)
        ml_record_equal(c, row->value, ml_json_get(want, row->name), f64, row->name);
    ml_record_expect(c, n == want->n, "another number of figures");
}

static void play_statistics(ml_case *c) {
    static const char *const names[] = { "mean", "median", "max", "min" };
    const ml_json *values = ml_json_get(c->args, "values");
    const double *x = ml_record_row(c, values);
    double *copy = ML_NEW(&c->arena, double, values->n + 1);
    ml_metrics f;

    memcpy(copy, x, (size_t)values->n * sizeof *copy);
    ml_metrics_init(&f, &c->arena);
    ml_metrics_statistics(&f, "", copy, values->n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ml_record_equal(c, ml_metrics_get(&f, names[i], -1e300),
                        ml_json_get(c->out, names[i]), f64, names[i]);
}

static void play_one_filter(ml_case *c, const char *name, const ml_sample *const *s,
                            int32_t n) {
    const ml_json *want = ml_json_get(c->out, name), *reason = ml_json_get(want, "reason");
    char got[40] = "";
    bool keep = false;
    const miles_extension *row = NULL;
    ml_err err = { 0 };

    ml_record_expect(
        c, ml_extension_find(&row, MILES_GROUP_FILTER, name, "", &err) == ML_OK, name);
    if (!row)
        return;
    ml_group_filter_run((const void *)row, s, n, &keep, got, &err);
    ml_record_expect(c, keep == ml_case_flag(want, "keep"), "another decision");
    if (reason && reason->type == ML_JSON_STRING)
        ml_record_expect(c, ml_str_is(reason->text, got), got);
}

/* Rewards that are whole numbers without a point are counted under names without one there. */
static bool has_whole(const ml_json *rewards) {
    for (const ml_json *r = rewards->child; r; r = r->next)
        if (r->type == ML_JSON_NUMBER && !memchr(r->text.ptr, '.', r->text.len))
            return true;
    return false;
}

static void play_filter(ml_case *c) {
    const ml_json *rewards = ml_json_get(c->args, "rewards"),
                  *status = ml_json_get(c->args, "statuses")->child;
    const ml_sample **list = samples_of(c, rewards, rewards->n);
    ml_sample *s = ML_NEW(&c->arena, ml_sample, rewards->n + 1);

    for (int32_t i = 0; i < rewards->n; i++, status = status->next) {
        s[i] = *list[i];
        if (ml_str_is(status->text, "aborted"))
            s[i].status = ML_SAMPLE_ABORTED;
        list[i] = &s[i];
    }
    if (!has_whole(rewards))
        play_one_filter(c, "check_reward_nonzero_std", list, rewards->n);
    play_one_filter(c, "check_no_aborted", list, rewards->n);
}

/* --- what of a round is trained on ------------------------------------------------ */

static void play_trim(ml_case *c) {
    const ml_json *kept = ml_json_get(c->out, "kept_indices");
    int64_t n = ml_case_i64(c->args, "num_samples", 0),
            size = ml_case_i64(c->out, "dynamic_global_batch_size", 0);
    ml_truncate_opts o = {
        .global_batch_size = ml_case_i64(c->args, "global_batch_size", 1),
        .n_rank = (int32_t)ml_case_i64(c->args, "dp_size", 1),
        .one_step = ml_case_flag(c->args, "use_dynamic_global_batch_size"),
        .all = ml_case_flag(c->args, "disable_rollout_trim_samples"),
        .has_pieces = ml_case_flag(c->args, "has_rollout_ids"),
    };
    int64_t got = ml_truncate(&o, n);

    if (ml_json_get(c->out, "error")) {
        ml_record_expect(c, got == 0, "failed there");
        return;
    }
    ml_record_expect(c, kept && got == kept->n, "another number of samples is kept");
    ml_record_expect(c, !size || got == size, "another size of the step");
}

/* NULL: one of them is refused. */
static ml_sample *read_samples(ml_case *c, const ml_json *list) {
    ml_sample *s = ML_NEW(&c->arena, ml_sample, list->n + 1);
    const ml_json *v = list->child;

    for (int32_t i = 0; i < list->n; i++, v = v->next)
        if (ml_sample_read(&s[i], &c->arena, v, (ml_str){ "", 0 }, "a sample", NULL))
            return NULL;
    return s;
}

static void same_ints(ml_case *c, const ml_json *want, int64_t n,
                      int64_t (*at)(void *, int64_t), void *ud, const char *what) {
    int64_t n_want, *list = ml_case_i64s(c, want, &n_want);
    bool same = n_want == n;

    for (int64_t i = 0; same && i < n; i++)
        same = at(ud, i) == list[i];
    ml_record_expect(c, same, what);
}

static int64_t token_at(void *ud, int64_t i) {
    return ((const ml_train_sample *)ud)->token[i];
}

static int64_t mask_at(void *ud, int64_t i) {
    return ((const ml_train_sample *)ud)->mask[i];
}

static const ml_json *item(const ml_json *list, int32_t i) {
    const ml_json *v = list ? list->child : NULL;
    while (v && i-- > 0)
        v = v->next;
    return v;
}

static void same_row(ml_case *c, const ml_train_rows *r, const ml_sample *s, int32_t i) {
    const ml_json *out = c->out;
    const ml_json *drawn = ml_json_get(out, "rollout_log_probs");
    ml_train_sample *t = &r->train[i];

    same_ints(c, item(ml_json_get(out, "tokens"), i), t->n_token, token_at, t, "tokens");
    same_ints(c, item(ml_json_get(out, "loss_masks"), i), t->n_response, mask_at, t,
              "mask");
    ml_record_equal(c, t->n_response, item(ml_json_get(out, "response_lengths"), i), f64,
                    "response_lengths");
    ml_record_equal(c, r->row[i].reward, item(ml_json_get(out, "rewards"), i), f64,
                    "rewards");
    ml_record_equal(c, (double)t->rollout, item(ml_json_get(out, "rollout_ids"), i), f64,
                    "rollout_ids");
    ml_record_equal(c, s->status == ML_SAMPLE_TRUNCATED,
                    item(ml_json_get(out, "truncated"), i), f64, "truncated");
    if (drawn)
        ml_record_equal_row(c, r->row[i].rollout_log_prob, t->n_response, item(drawn, i),
                            f64, "rollout_log_probs");
}

static void play_convert(ml_case *c) {
    const ml_json *list = ml_json_get(c->args, "samples");
    ml_sample *s = read_samples(c, list);
    const ml_sample **view = ML_NEW(&c->arena, const ml_sample *, list->n + 1);
    double *sum = ML_NEW(&c->arena, double, list->n + 1);
    ml_train_rows rows;

    ml_record_expect(c, !s == (ml_json_get(c->out, "error") != NULL),
                     "samples that Miles refuses are taken, or others are not");
    if (!s)
        return;
    for (int32_t i = 0; i < list->n; i++)
        view[i] = &s[i];
    rows = ml_train_rows_of(&c->arena, view, list->n);
    ml_divisors(sum, &(miles_batch){ sizeof(miles_batch), list->n, rows.view }, false);
    for (int32_t i = 0; i < list->n; i++) {
        double want = ml_record_number(item(ml_json_get(c->out, "rollout_mask_sums"), i));
        same_row(c, &rows, &s[i], i);
        ml_record_expect(c, sum[i] == (want > 1 ? want : 1), "rollout_mask_sums");
    }
}

#define PLAYS(name, file, play)                                                            \
    static void name(void) {                                                               \
        ml_test_cases(file, play);                                                         \
    }
PLAYS(pass_rate, "pass_rate.jsonl", play_pass_rate)
PLAYS(statistics, "compute_statistics.jsonl", play_statistics)
PLAYS(trim, "trim_and_dynamic_gbs.jsonl", play_trim)
PLAYS(convert, "convert_samples.jsonl", play_convert)
PLAYS(filters, "dynamic_filter.jsonl", play_filter)

static const ml_test tests[] = {
    { "pass rates are Miles'", pass_rate },
    { "statistics are Miles'", statistics },
    { "dynamic sampling filters are Miles'", filters },
    { "trimming and dynamic batch sizes are Miles'", trim },
    { "conversion of samples is Miles'", convert },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
