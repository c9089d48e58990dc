/* rollout_gen.h - generates a rollout batch: sends prompts, collects samples with rewards.
 *
 * The rollout requests groups of samples until enough are kept.  It filters a group when
 * the last sample of the group is finished; groups that finish in the same step are
 * filtered in the order of their numbers, and all decisions are made between steps.
 * Groups that are no longer needed are aborted and dropped, or kept in the partial buffer,
 * from which the next rollout takes its first groups.
 *
 * A group with a sample that has no reward (the grader hung, crashed or returned an
 * invalid answer) is dropped and counted; a missing reward is never treated as 0.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROLLOUT_GEN_H
#define ML_RL_ROLLOUT_ROLLOUT_GEN_H

#include <stdatomic.h>

#include "rl/rollout/gen_task.h"
#include "rl/rollout/group_filter.h"
#include "rl/rollout/partial_buffer.h"
#include "rl/rollout/rollout.h"

typedef struct ml_gen_rollout {
    ml_train_run *run;
    ml_gen_ctx gen_ctx;
    ml_sampling how;
    int64_t over_sampling; /* groups requested at once; 0: the rollout batch size */
    const miles_group_filter *filter; /* NULL: all groups are kept */
    /* Which buffered groups are continued; NULL: the first. */
    const miles_buffer_filter *buffer_filter;
    bool partial;  /* the next rollout continues aborted groups ... */
    bool mask_old; /* ... and does not train on the tokens they already have */
    ml_partial_buffer partial_buffer;
    atomic_bool cancelled; /* collect fails */
} ml_gen_rollout;

/* The caller initialises partial_buffer. */
ml_rollout ml_rollout_gen(ml_gen_rollout *g);

#endif
