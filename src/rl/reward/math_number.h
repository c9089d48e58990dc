/* math_number.h - a number's token as an exact quotient.
 *
 * thread: as the algebra's. */
#ifndef ML_RL_REWARD_MATH_NUMBER_H
#define ML_RL_REWARD_MATH_NUMBER_H

#include "rl/reward/math_lex.h"
#include "rl/reward/ratfun.h"

/* Gives up (work.spent) where the exponent is beyond reason. */
ml_ratfun ml_math_number(ml_algebra *a, const ml_mtok *t);

#endif
