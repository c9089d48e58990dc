/* whiten.h - normalises numbers to mean 0 and variance 1 over the trained tokens.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_ADVANTAGE_WHITEN_H
#define ML_RL_LEARN_ADVANTAGE_WHITEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define ML_WHITEN_EPSILON 1e-8

/* x <- (x - mean) / sqrt(variance + epsilon) at every position; mean and variance (n - 1)
 * are those of the positions whose mask is 1.  Without shift_mean the mean is added back.
 * ML_EFORMAT: no position is trained. */
ml_status ml_whiten(double *const *x, const uint8_t *const *mask, const int64_t *n,
                    int64_t n_sample, bool shift_mean, ml_err *err);

#endif
