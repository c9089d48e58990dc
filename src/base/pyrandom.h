/* pyrandom.h - CPython's random.Random, bit-exact.
 *
 * Data sets are shuffled exactly as in Miles, so that a run has the same order of
 * prompts.  This is a Mersenne Twister (MT19937) with CPython's seeding from an integer.
 * Nothing else in the project uses it: sampling uses counter-based numbers (philox.h).
 *
 * thread: a generator has one owner. */
#ifndef ML_BASE_PYRANDOM_H
#define ML_BASE_PYRANDOM_H

#include <stdint.h>

enum { ML_PYRANDOM_WORDS = 624 };

typedef struct ml_pyrandom {
    uint32_t word[ML_PYRANDOM_WORDS];
    int next; /* the next unused word */
} ml_pyrandom;

/* As random.Random(seed); as there, seed and -seed give the same numbers. */
void ml_pyrandom_init(ml_pyrandom *r, int64_t seed);

/* As random.getrandbits(32). */
uint32_t ml_pyrandom_u32(ml_pyrandom *r);

/* As random.randrange(n), for n > 0. */
uint32_t ml_pyrandom_below(ml_pyrandom *r, uint32_t n);

/* As random.shuffle(x). */
void ml_pyrandom_shuffle(ml_pyrandom *r, uint32_t *x /* [n] */, uint32_t n);

#endif
