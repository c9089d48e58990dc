/* divisors.h - what the sums of a step are divided by.
 *
 * loss = (sum over samples of sum / divisor) / denominator.  By default a sample's divisor
 * is the number of trained tokens of its rollout and the denominator the number of
 * rollouts; per token it is 1 and the number of tokens, at least one for each sample.
 *
 * thread: any. */
#ifndef ML_RL_REDUCE_DIVISORS_H
#define ML_RL_REDUCE_DIVISORS_H

#include "miles/plugin.h"

/* Fills divisor[batch->n] and returns the denominator, at least 1. */
double ml_divisors(double *divisor, const miles_batch *batch, bool per_token);

/* (sum over samples of number[i * stride] / divisor[i]) / denominator, in the order of the
 * samples whatever order they were computed in.  No divisors: 1. */
double ml_fold(const double *number, int64_t stride, int64_t n, const double *divisor,
               double denominator);

#endif
