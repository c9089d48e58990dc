/* big.h - whole numbers of any size, with a bound on the work spent on them.
 *
 * Grading meets numbers that strangers wrote: 9**9**9 among them.  Every operation takes
 * from an allowance; when that is used up, `spent` is set, results are zeros, and the
 * caller gives up once at the end instead of checking each step.
 *
 * thread: a work, and all numbers made with it, belong to one thread. */
#ifndef ML_RL_REWARD_BIG_H
#define ML_RL_REWARD_BIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_work {
    ml_arena *arena;
    int64_t left; /* in multiplications of machine words, about */
    bool spent;
} ml_work;

/* False when nothing is left. */
bool ml_work_take(ml_work *w, int64_t amount);

#define ML_BIG_LIMBS 512 /* a number above is work that is refused */

/* Immutable; lives in the work's arena.  Zero has n = 0 and no sign. */
typedef struct ml_big {
    bool neg;
    int32_t n;
    const uint32_t *limb; /* [n] low first; the last is not 0 */
} ml_big;

ml_big ml_big_of(ml_work *w, int64_t v);
ml_big ml_big_digits(ml_work *w, ml_str decimal); /* ASCII digits only */
ml_big ml_big_power(ml_work *w, uint32_t base, int64_t exponent);

ml_big ml_big_add(ml_work *w, ml_big a, ml_big b);
ml_big ml_big_mul(ml_work *w, ml_big a, ml_big b);
ml_big ml_big_minus(ml_big a);

bool ml_big_eq(ml_big a, ml_big b);
/* The magnitude, when it fits. */
bool ml_big_u64(ml_big a, uint64_t *out);

#endif
