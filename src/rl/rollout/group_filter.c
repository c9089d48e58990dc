#include "rl/rollout/group_filter.h"

#include <math.h>
#include <stdio.h>

#include "rl/answers.h"
#include "rl/builtins.h"

#define HUB "miles.rollout.filter_hub.dynamic_sampling_filters."

/* The unbiased standard deviation of the rewards; undefined for a single answer. */
static double spread(const miles_answers *g) {
    double mean = 0.0, square = 0.0, n = (double)g->n;

    for (int64_t i = 0; i < g->n; i++)
        mean += g->answer[i]->reward / n;
    for (int64_t i = 0; i < g->n; i++)
        square += (g->answer[i]->reward - mean) * (g->answer[i]->reward - mean);
    return sqrt(square / (n - 1));
}

static int reward_nonzero_std(const miles_answers *g, bool *keep, char reason[40],
                              miles_error *err) {
    (void)err;
    *keep = g->n > 1 && spread(g) > 1e-8;
    if (!*keep)
        snprintf(reason, 40, "zero_std_%.1f", g->answer[0]->reward);
    return 0;
}

static int no_aborted(const miles_answers *g, bool *keep, char reason[40],
                      miles_error *err) {
    (void)err;
    for (int64_t i = 0; i < g->n; i++)
        if (g->answer[i]->status == MILES_ABORTED) {
            *keep = false;
            snprintf(reason, 40, "group_has_aborted");
        }
    return 0;
}

const miles_group_filter ml_filter_nonzero_std = {
    { sizeof(miles_group_filter), MILES_GROUP_FILTER, "check_reward_nonzero_std",
      HUB "check_reward_nonzero_std", "keeps groups with nonzero reward variance" },
    reward_nonzero_std
};
const miles_group_filter ml_filter_no_aborted = {
    { sizeof(miles_group_filter), MILES_GROUP_FILTER, "check_no_aborted",
      HUB "check_no_aborted", "keeps groups without aborted samples" },
    no_aborted
};

ml_status ml_group_filter_run(const miles_group_filter *f, const ml_sample *const *sample,
                              int32_t n, bool *keep, char reason[40], ml_err *err) {
    miles_error why = { "" };
    ml_status st = ML_OK;
    ml_arena a;

    ml_arena_init(&a, "a group");
    *keep = true;
    reason[0] = 0;
    if (f->run(ml_answers_of(&a, sample, n, -1), keep, reason, &why) != 0)
        st = ml_extension_failed(&f->base, &why, err);
    reason[39] = 0;
    ml_arena_release(&a);
    return st;
}
