/* group_filter.h - decides which groups of answers are trained on.
 *
 * thread: any; stateless. */
#ifndef ML_RL_ROLLOUT_GROUP_FILTER_H
#define ML_RL_ROLLOUT_GROUP_FILTER_H

#include "miles/plugin.h"
#include "rl/sample.h"

/* Sets *keep if the group is to be trained on.  Otherwise `reason`, unless "", is the drop
 * reason under which it is counted. */
ml_status ml_group_filter_run(const miles_group_filter *f, const ml_sample *const *sample,
                              int32_t n, bool *keep, char reason[40], ml_err *err);

#endif
