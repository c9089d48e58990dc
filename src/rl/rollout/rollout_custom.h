/* rollout_custom.h - a rollout implemented by a user's extension.
 *
 * The extension requests any number of groups, any number of times, and selects the ones
 * to train on.  A request returns only when all its groups are finished, so the result of
 * a rollout does not depend on timing.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROLLOUT_CUSTOM_H
#define ML_RL_ROLLOUT_ROLLOUT_CUSTOM_H

#include "rl/rollout/rollout.h"
#include "rl/rollout/group.h"

typedef struct ml_custom_rollout {
    const miles_rollout *ext; /* the extension; NULL: none */
    ml_prompt_feed feed;
    ml_gen_ctx gen_ctx;
    ml_sampling how;
    /* The next train step changes the weights that the generator reads: no request of the
     * user's function may be in flight after it has returned. */
    bool must_rest;
} ml_custom_rollout;

ml_rollout ml_rollout_custom(ml_custom_rollout *r);

#endif
