/* Filters and figures of a round against what Miles' own code gave. */
#include <stdio.h>
#include <string.h>

#include "plugin/edge.h"
#include "rl/group_filter.h"
#include "rl/sample_figures.h"
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
    ml_figures f;
    int32_t n = 0;

    if (!want) /* a refusal of arguments that cannot come up here */
        return;
    ml_figures_init(&f, &c->arena);
    ml_figures_pass_rate(&f, "", samples_of(c, rewards, size), rewards->n, (int32_t)size);
    for (const ml_figure *row = f.first; row; row = row->next, n++)
        ml_record_equal(c, row->value, ml_json_get(want, row->name), f64, row->name);
    ml_record_expect(c, n == want->n, "another number of figures");
}

static void play_statistics(ml_case *c) {
    static const char *const names[] = { "mean", "median", "max", "min" };
    const ml_json *values = ml_json_get(c->args, "values");
    const double *x = ml_record_row(c, values);
    double *copy = ML_NEW(&c->arena, double, values->n + 1);
    ml_figures f;

    memcpy(copy, x, (size_t)values->n * sizeof *copy);
    ml_figures_init(&f, &c->arena);
    ml_figures_statistics(&f, "", copy, values->n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ml_record_equal(c, ml_figures_get(&f, names[i], -1e300),
                        ml_json_get(c->out, names[i]), f64, names[i]);
}

static void play_one_filter(ml_case *c, const char *name, const ml_sample *const *s,
                            int32_t n) {
    const ml_json *want = ml_json_get(c->out, name), *reason = ml_json_get(want, "reason");
    char got[40] = "";
    bool keep = false;
    const miles_row *row = NULL;
    ml_err err = { 0 };

    ml_record_expect(c, ml_edge_find(&row, MILES_GROUP_FILTER, name, "", &err) == ML_OK,
                     name);
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

#define PLAYS(name, file, play)                                                            \
    static void name(void) {                                                               \
        ml_test_cases(file, play);                                                         \
    }
PLAYS(pass_rate, "pass_rate.jsonl", play_pass_rate)
PLAYS(statistics, "compute_statistics.jsonl", play_statistics)
PLAYS(filters, "dynamic_filter.jsonl", play_filter)

static const ml_test tests[] = {
    { "pass_rate", pass_rate },
    { "compute_statistics", statistics },
    { "dynamic_filter", filters },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
