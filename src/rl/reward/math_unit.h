/* math_unit.h - are two quantities, numbers with units, the same?
 *
 * thread: as the arena's. */
#ifndef ML_RL_REWARD_MATH_UNIT_H
#define ML_RL_REWARD_MATH_UNIT_H

#include "rl/reward/math_value.h"

/* Equal as expressions or as quantities: "5 cm" is 5, but not "5 hours"; 50% is 50 and a half;
 * \$18 is 18 dollars and 18, but not 18 cents, which are \$0.18. */
bool ml_quantity_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y);

#endif
