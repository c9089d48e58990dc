/* math_same.h - do two answers say the same?
 *
 * Answers are compared as text first, then by what they are: lists, sets, tuples,
 * intervals, matrices and equations part by part, numbers with their units, and
 * expressions by exact algebra.  What is not understood is only equal as text.
 *
 * Miles' graders refuse some comparisons that would succeed, and published results depend
 * on it.  These refusals are the strict form; docs/REWARDS.md lists them.
 *
 * No pair of answers takes long: see the bounds in the implementation.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_MATH_SAME_H
#define ML_RL_REWARD_MATH_SAME_H

#include <stdbool.h>

#include "base/str.h"

bool ml_math_same(ml_str answer, ml_str label, bool strict);

#endif
