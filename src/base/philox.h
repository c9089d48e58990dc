/* philox.h - counter-based random numbers.
 *
 * Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): ten
 * rounds turn a counter under a key into four words.  Here the key is the seed and the
 * counter is (sample, position), low words first.  A number depends only on seed, sample
 * and position, so that a sample can be interrupted anywhere and continued elsewhere.
 *
 * thread: any. */
#ifndef ML_BASE_PHILOX_H
#define ML_BASE_PHILOX_H

#include <stdint.h>

typedef struct ml_philox {
    uint32_t word[4];
} ml_philox;

ml_philox ml_philox_at(uint64_t seed, uint64_t sample, uint64_t position);

/* Uniform in [0, 1): word 0 is the upper half and word 1 the lower half of 64 bits, of
 * which the upper 53 are used, in steps of 2^-53. */
double ml_philox_uniform(uint64_t seed, uint64_t sample, uint64_t position);

#endif
