/* math_number.h - converts a number token to an exact quotient.
 *
 * thread: as the algebra's. */
#ifndef ML_RL_REWARD_MATH_MATH_NUMBER_H
#define ML_RL_REWARD_MATH_MATH_NUMBER_H

#include "rl/reward/math/math_lex.h"
#include "rl/reward/math/ratfun.h"

/* Sets work.spent if the exponent is too large. */
ml_ratfun ml_math_number(ml_algebra *a, const ml_mtok *t);

#endif
