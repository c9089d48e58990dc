/* math_same.h - are two answers equivalent?
 *
 * Answers are compared as text first, then by type: lists, sets, tuples, intervals,
 * matrices and equations part by part, numbers with their units, and expressions by exact
 * algebra.  Answers that cannot be parsed are equal only as text.
 *
 * Miles' graders refuse some comparisons that would succeed, and published results depend
 * on it.  The strict mode has these refusals; docs/REWARDS.md lists them.
 *
 * The time per pair is bounded: see the limits in the implementation.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_MATH_MATH_SAME_H
#define ML_RL_REWARD_MATH_MATH_SAME_H

#include <stdbool.h>

#include "base/str.h"

bool ml_math_same(ml_str answer, ml_str label, bool strict);

#endif
