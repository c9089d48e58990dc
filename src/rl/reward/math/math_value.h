/* math_value.h - do two expressions, given as tokens, have the same value?
 *
 * thread: as the arena's. */
#ifndef ML_RL_REWARD_MATH_MATH_VALUE_H
#define ML_RL_REWARD_MATH_MATH_VALUE_H

#include "rl/reward/math/math_lex.h"
#include "rl/reward/math/ratfun.h"

/* State shared by all comparisons of one pair of answers. */
typedef struct ml_mcompare {
    ml_arena *arena;
    int64_t work; /* remaining work budget for algebra */
    bool strict;
} ml_mcompare;

/* Equal as text: token by token, ignoring white space. */
bool ml_mtoks_same_text(ml_mtoks x, ml_mtoks y);

/* Equal as expressions, or as text. */
bool ml_value_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y);

ml_mtoks ml_mtoks_part(ml_mtoks x, int32_t from, int32_t to);

#endif
