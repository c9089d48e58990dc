/* math_parse.h - parses the tokens of one expression into exact algebra.
 *
 * thread: as the algebra's. */
#ifndef ML_RL_REWARD_MATH_MATH_PARSE_H
#define ML_RL_REWARD_MATH_MATH_PARSE_H

#include "rl/reward/math/math_lex.h"
#include "rl/reward/math/ratfun.h"

/* False if the tokens are not an expression, or exceed the work budget. */
bool ml_math_parse(ml_ratfun *out, ml_algebra *a, ml_mtoks toks);

#endif
