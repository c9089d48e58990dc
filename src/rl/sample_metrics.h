/* sample_figures.h - a batch of samples in numbers, by Miles' names.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_SAMPLE_METRICS_H
#define ML_RL_SAMPLE_METRICS_H

#include "rl/metrics.h"
#include "rl/sample.h"

/* mean, median, max and min of n > 0 values, which are sorted. */
void ml_metrics_statistics(ml_metrics *f, const char *prefix, double *value /* [n] */,
                           int64_t n);

/* response_len/..., truncated_ratio: after the prefix, such as "rollout/". */
void ml_metrics_lengths(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                        int64_t n);

/* reward/NAME: means of the further numbers of rewards, each over the samples that have it. */
void ml_metrics_parts(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                      int64_t n);

/* multi_turn/...: the model's turns, and lengths with and without what was said to it. */
void ml_metrics_turns(ml_metrics *f, const ml_sample *const *s, int64_t n);

/* zero_std/...: groups whose answers were all worth the same. */
void ml_metrics_zero_std(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                         int64_t n);

/* pass@1, 2, 4, ...: the chance that one of k answers is right, over groups of n_per_group
 * (others are left out), which stand together. */
void ml_metrics_pass_rate(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                          int64_t n, int32_t n_per_group);

#endif
