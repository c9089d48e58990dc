/* shared.h - a rollout whose batches all ranks of a job train on.
 *
 * Rank 0 owns the inner rollout: data, rewards, filters and the state that a snapshot has.
 * It collects a batch and sends the samples to the other ranks, which wait for them.  The
 * other functions do nothing on other ranks.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_SHARED_H
#define ML_RL_ROLLOUT_SHARED_H

#include "comm/comm.h"
#include "rl/rollout/rollout.h"

typedef struct ml_shared_rollout {
    ml_comm *comm;
    ml_rollout inner; /* of rank 0; zeros on the others */
} ml_shared_rollout;

ml_rollout ml_rollout_shared(ml_shared_rollout *s);

#endif
