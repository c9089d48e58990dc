#include "rl/group_filter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The unbiased standard deviation, which one sample does not have. */
static double spread(const ml_sample *const *s, int32_t n) {
    double mean = 0.0, square = 0.0;

    for (int32_t i = 0; i < n; i++)
        mean += s[i]->reward / n;
    for (int32_t i = 0; i < n; i++)
        square += (s[i]->reward - mean) * (s[i]->reward - mean);
    return sqrt(square / (n - 1));
}

static bool reward_nonzero_std(const ml_sample *const *s, int32_t n, char reason[40]) {
    if (n > 1 && spread(s, n) > 1e-8)
        return true;
    snprintf(reason, 40, "zero_std_%.1f", s[0]->reward);
    return false;
}

static bool no_aborted(const ml_sample *const *s, int32_t n, char reason[40]) {
    for (int32_t i = 0; i < n; i++)
        if (s[i]->status == ML_SAMPLE_ABORTED) {
            snprintf(reason, 40, "group_has_aborted");
            return false;
        }
    return true;
}

static const ml_group_filter filters[] = {
    { "check_reward_nonzero_std", reward_nonzero_std },
    { "check_no_aborted", no_aborted },
};

const ml_group_filter *ml_group_filter_find(const char *path) {
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;

    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(filters[i].name, name) == 0)
            return &filters[i];
    return NULL;
}
