/* group_filter.h - which groups of answers are worth training on.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_GROUP_FILTER_H
#define ML_RL_GROUP_FILTER_H

#include "miles/plugin.h"
#include "rl/sample.h"

/* *keep: train on it; else `reason`, when not "", names what it is counted under. */
ml_status ml_group_filter_run(const miles_group_filter *f, const ml_sample *const *sample,
                              int32_t n, bool *keep, char reason[40], ml_err *err);

#endif
