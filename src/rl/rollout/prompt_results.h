/* prompt_results.h - the results of groups, for the curriculum of the prompts.
 *
 * thread: that of the data source. */
#ifndef ML_RL_ROLLOUT_PROMPT_RESULTS_H
#define ML_RL_ROLLOUT_PROMPT_RESULTS_H

#include "rl/rollout/group.h"
#include "rl/rollout/rollout.h"

/* Records a group that was kept or refused by a filter: how many of its samples passed. */
void ml_prompt_results_group(ml_data_source *s, const ml_gen_group *g);
/* Records the groups of a rollout batch, whose samples are in their order. */
void ml_prompt_results_batch(ml_data_source *s, const ml_rollout_batch *h);
/* Adds the metrics of the curriculum, if there is one. */
void ml_prompt_results_report(ml_data_source *s, ml_metrics *f);

#endif
