#include "rl/learn/advantage/whiten.h"

#include <math.h>

/* The sum of (x - origin)^power over trained positions, in the order of the samples. */
static double moment(double *const *x, const uint8_t *const *mask, const int64_t *n,
                     int64_t n_sample, double origin, bool squared) {
    double sum = 0.0;

    for (int64_t i = 0; i < n_sample; i++)
        for (int64_t t = 0; t < n[i]; t++)
            if (mask[i][t]) {
                double d = x[i][t] - origin;
                sum += squared ? d * d : d;
            }
    return sum;
}

/* Two-pass variance: a difference of moments cancels when the numbers are large and close
 * together, and can even become negative. */
ml_status ml_whiten(double *const *x, const uint8_t *const *mask, const int64_t *n,
                    int64_t n_sample, bool shift_mean, ml_err *err) {
    double count = 0.0, origin = 0.0, mean, variance, by;

    for (int64_t i = 0; i < n_sample; i++)
        for (int64_t t = 0; t < n[i]; t++)
            if (mask[i][t]) {
                origin = count == 0.0 ? x[i][t] : origin;
                count += 1.0;
            }
    if (count == 0.0)
        return ml_fail(err, ML_EFORMAT,
                       "cannot whiten advantages: the rollout has no trained token");
    mean = origin + moment(x, mask, n, n_sample, origin, false) / count;
    variance = moment(x, mask, n, n_sample, mean, true) / (count > 1.0 ? count - 1.0 : 1.0);
    by = 1.0 / sqrt(variance + ML_WHITEN_EPSILON);
    for (int64_t i = 0; i < n_sample; i++)
        for (int64_t t = 0; t < n[i]; t++)
            x[i][t] = (x[i][t] - mean) * by + (shift_mean ? 0.0 : mean);
    return ML_OK;
}
