/* moments.h - moments of an optimizer in fewer than 32 bits.
 *
 * bf16 rounds to nearest even.  FP8 (E4M3, 1 sign, 4 exponent and 3 mantissa bits) rounds
 * stochastically: with nearest rounding, an average that decays by less than half a step
 * would never decay.  The random bits are Philox words of (step, parameter, element), so that
 * they depend neither on threads nor on ranks.
 *
 * A block of ML_MOMENT_BLOCK elements has the smallest power of two as its scale with which
 * its largest magnitude does not exceed 448.  A second moment is stored as its square root,
 * which halves the range of exponents; one that is not 0 is never rounded to 0.  Values that
 * were loaded are stored again without change, so that a snapshot may hold f32.
 *
 * thread: any; different elements, in whole blocks, may be stored at the same time. */
#ifndef ML_BACKEND_MOMENTS_H
#define ML_BACKEND_MOMENTS_H

#include "backend/optim.h"

/* Bytes of n elements. */
size_t ml_moment_bytes(ml_moment_format f, int64_t n);

/* Elements of a stored moment. */
typedef struct ml_moment {
    ml_moment_format format;
    void *data;
    int64_t n;         /* in all */
    bool second;       /* a second moment */
    uint64_t step, id; /* of the random bits */
    uint64_t first;    /* number of the first element of data */
} ml_moment;

/* Elements [at, at + n), of which `at` begins a block. */
void ml_moment_load(float *to, const ml_moment *m, int64_t at, int64_t n);
void ml_moment_store(const ml_moment *m, int64_t at, int64_t n, const float *from);

#endif
