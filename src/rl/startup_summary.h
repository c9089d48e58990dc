/* first_look.h - the first round of a run in a few lines, with what looks wrong.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_STARTUP_SUMMARY_H
#define ML_RL_STARTUP_SUMMARY_H

#include "rl/rollout.h"

/* One prompt with its answer, how long answers are and what they were worth; then, in plain
 * words, what keeps a run from learning: answers that are cut off, all alike, or all worth
 * the same; the last only where the run compares the rewards of a prompt's answers. */
void ml_startup_summary(const ml_rollout_batch *h, bool compares,
                        void (*say)(const char *line));

/* "WHEN: to PROMPT the model answers ANSWER, worth R". */
void ml_show_sample(const char *when, const ml_sample *s, void (*say)(const char *line));

#endif
