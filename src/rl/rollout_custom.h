/* rollout_row.h - rounds that somebody's own row makes.
 *
 * The row asks for groups, as many and as often as it likes, and says which are trained on.
 * It decides when all of what it asked for is there, so that a round does not depend on
 * the clock.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_CUSTOM_H
#define ML_RL_ROLLOUT_CUSTOM_H

#include "rl/gen_task.h"
#include "rl/rollout.h"

typedef struct ml_custom_rollout {
    const miles_rollout *row; /* NULL: there is none */
    ml_train_run *run;
    ml_gen_ctx asker;
    ml_sampling how;
} ml_custom_rollout;

ml_rollout ml_rollout_custom(ml_custom_rollout *r);

#endif
