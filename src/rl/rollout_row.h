/* rollout_row.h - rounds that somebody's own row makes.
 *
 * The row asks for groups, as many and as often as it likes, and says which are trained on.
 * It decides when all of what it asked for is there, so that a round does not depend on
 * the clock.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROW_H
#define ML_RL_ROLLOUT_ROW_H

#include "rl/flight.h"
#include "rl/rollout.h"

typedef struct ml_row_rollout {
    const miles_rollout *row; /* NULL: there is none */
    ml_train_run *run;
    ml_asker asker;
    ml_sampling how;
} ml_row_rollout;

ml_rollout ml_rollout_row(ml_row_rollout *r);

#endif
