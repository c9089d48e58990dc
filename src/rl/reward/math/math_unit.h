/* math_unit.h - are two quantities, numbers with units, equal?
 *
 * thread: as the arena's. */
#ifndef ML_RL_REWARD_MATH_MATH_UNIT_H
#define ML_RL_REWARD_MATH_MATH_UNIT_H

#include "rl/reward/math/math_value.h"

/* True if equal as expressions or as quantities: "5 cm" equals 5, but not "5 hours";
 * 50% equals 50 and 1/2; \$18 equals 18 dollars and 18, but not 18 cents, which equal
 * \$0.18. */
bool ml_quantity_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y);

#endif
