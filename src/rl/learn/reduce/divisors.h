/* divisors.h - normalisation of the sums of a step.
 *
 * loss = (sum over samples of sum / divisor) / denominator.  By default a sample's divisor
 * is the number of trained tokens of its rollout and the denominator is the number of
 * rollouts.  Per token, the divisor is 1 and the denominator is the number of tokens, at
 * least one for each sample.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_REDUCE_DIVISORS_H
#define ML_RL_LEARN_REDUCE_DIVISORS_H

#include "miles/plugin.h"

/* Fills divisor[batch->n] and returns the denominator, at least 1. */
double ml_divisors(double *divisor, const miles_batch *batch, bool per_token);

/* (sum over samples of number[i * stride] / divisor[i]) / denominator, always added in the
 * order of the samples.  No divisors: 1. */
double ml_fold(const double *number, int64_t stride, int64_t n, const double *divisor,
               double denominator);

#endif
