/* math_parse.h - tokens of one expression, as exact algebra.
 *
 * thread: as the algebra's. */
#ifndef ML_RL_REWARD_MATH_PARSE_H
#define ML_RL_REWARD_MATH_PARSE_H

#include "rl/reward/math_lex.h"
#include "rl/reward/ratfun.h"

/* False when the tokens are no expression, or too much work. */
bool ml_math_parse(ml_ratfun *out, ml_algebra *a, ml_mtoks toks);

#endif
