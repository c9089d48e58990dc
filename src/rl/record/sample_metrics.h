/* sample_metrics.h - metrics of a batch of samples, with Miles' names.
 *
 * thread: any; no state. */
#ifndef ML_RL_RECORD_SAMPLE_METRICS_H
#define ML_RL_RECORD_SAMPLE_METRICS_H

#include "rl/record/metrics.h"
#include "rl/sample.h"

/* Adds the mean, median, max and min of n > 0 values; sorts the values. */
void ml_metrics_statistics(ml_metrics *f, const char *prefix, double *value /* [n] */,
                           int64_t n);

/* Adds response_len/... and truncated_ratio, after a prefix such as "rollout/". */
void ml_metrics_lengths(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                        int64_t n);

/* Adds reward/NAME: means of the further numbers of rewards, each over the samples that
 * have it. */
void ml_metrics_parts(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                      int64_t n);

/* Adds multi_turn/...: the model's turns, and lengths with and without the environment's
 * tokens. */
void ml_metrics_turns(ml_metrics *f, const ml_sample *const *s, int64_t n);

/* Adds zero_std/...: groups in which all rewards are equal. */
void ml_metrics_zero_std(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                         int64_t n);

/* Adds pass@1, 2, 4, ...: the probability that at least one of k answers is correct, over
 * groups of n_per_group consecutive samples.  Other groups are left out. */
void ml_metrics_pass_rate(ml_metrics *f, const char *prefix, const ml_sample *const *s,
                          int64_t n, int32_t n_per_group);

#endif
