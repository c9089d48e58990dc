/* big.h - arbitrary-precision integers, with a bound on the work spent on them.
 *
 * Grading handles untrusted numbers, such as 9**9**9.  Every operation takes from a work
 * budget; when the budget is used up, `spent` is set and results are zeros, so the caller
 * checks once at the end instead of after each operation.
 *
 * thread: a work, and all numbers made with it, belong to one thread. */
#ifndef ML_RL_REWARD_MATH_BIG_H
#define ML_RL_REWARD_MATH_BIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

typedef struct ml_work {
    ml_arena *arena;
    int64_t left; /* approximately in multiplications of machine words */
    bool spent;
} ml_work;

/* False if the budget is used up. */
bool ml_work_take(ml_work *w, int64_t amount);

#define ML_BIG_LIMBS 512 /* larger numbers are refused */

/* Immutable; allocated in the work's arena.  Zero has n = 0 and no sign. */
typedef struct ml_big {
    bool neg;
    int32_t n;
    const uint32_t *limb; /* [n] least significant first; the last is not 0 */
} ml_big;

ml_big ml_big_of(ml_work *w, int64_t v);
ml_big ml_big_digits(ml_work *w, ml_str decimal); /* ASCII digits only */
ml_big ml_big_power(ml_work *w, uint32_t base, int64_t exponent);

ml_big ml_big_add(ml_work *w, ml_big a, ml_big b);
ml_big ml_big_mul(ml_work *w, ml_big a, ml_big b);
ml_big ml_big_minus(ml_big a);

bool ml_big_eq(ml_big a, ml_big b);
/* The magnitude, if it fits. */
bool ml_big_u64(ml_big a, uint64_t *out);

#endif
