/* startup_summary.h - the first rollout of a run in a few lines, with warnings.
 *
 * thread: any; no state. */
#ifndef ML_RL_LOOP_STARTUP_SUMMARY_H
#define ML_RL_LOOP_STARTUP_SUMMARY_H

#include "rl/rollout/rollout.h"

/* Prints one prompt with its answer, the lengths and the rewards.  Then warns about
 * conditions under which a run does not learn: answers that are truncated, all identical,
 * or all of equal reward; the last only if the run compares the rewards of a prompt's
 * answers. */
void ml_startup_summary(const ml_rollout_batch *h, bool compares,
                        void (*say)(const char *line));

/* Prints "WHEN: prompt PROMPT, response RESPONSE, reward R". */
void ml_show_sample(const char *when, const ml_sample *s, void (*say)(const char *line));

#endif
