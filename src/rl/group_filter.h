/* group_filter.h - which groups of answers are worth training on.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_GROUP_FILTER_H
#define ML_RL_GROUP_FILTER_H

#include "rl/sample.h"

typedef struct ml_group_filter {
    const char *name;
    /* True: keep it; else `reason`, when not "", names what it is counted under. */
    bool (*keep)(const ml_sample *const *sample, int32_t n, char reason[40]);
} ml_group_filter;

/* By its name, or Miles' path that ends in it; NULL: there is none of that name. */
const ml_group_filter *ml_group_filter_find(const char *path);

#endif
