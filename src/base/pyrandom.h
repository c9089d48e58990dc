/* pyrandom.h - the random numbers of CPython's random.Random, to the bit.
 *
 * Data sets are shuffled as Miles shuffles them, so that a run sees its prompts in
 * the order its users know.  This is a Mersenne Twister seeded the way CPython
 * seeds it from an integer; nothing else in the project draws from it (sampling is
 * addressed by counter, not drawn).
 *
 * thread: a generator has one owner. */
#ifndef ML_BASE_PYRANDOM_H
#define ML_BASE_PYRANDOM_H

#include <stdint.h>

enum { ML_PYRANDOM_WORDS = 624 };

typedef struct ml_pyrandom {
    uint32_t word[ML_PYRANDOM_WORDS];
    int next; /* the first word not yet given out */
} ml_pyrandom;

/* As random.Random(seed); like there, seed and -seed give the same numbers. */
void ml_pyrandom_init(ml_pyrandom *r, int64_t seed);

/* As random.getrandbits(32). */
uint32_t ml_pyrandom_u32(ml_pyrandom *r);

/* As random.randrange(n), for n > 0. */
uint32_t ml_pyrandom_below(ml_pyrandom *r, uint32_t n);

/* As random.shuffle(x). */
void ml_pyrandom_shuffle(ml_pyrandom *r, uint32_t *x /* [n] */, uint32_t n);

#endif
