/* rollout_gen.h - generates a rollout batch: starts groups, keeps those with rewards.
 *
 * The rollout starts groups (rollout/group.h) until enough are kept.  It decides about them
 * in the order of the step in which their last sample ended, then of their numbers, and
 * makes all decisions between steps.  Groups that are no longer needed are aborted and
 * dropped, or kept in the partial buffer, from which the next rollout takes its first
 * groups.
 *
 * If every group that is started is kept (no filter, no over-sampling), conversations
 * continue as soon as their environment replies, while the others decode.  Otherwise the
 * order in which groups end decides which are kept; then a step begins when all replies are
 * there, so that the same seed gives the same samples however fast the environment is.
 *
 * A group with a sample that has no reward (the grader hung, crashed or returned an
 * invalid answer) is dropped and counted; a missing reward is never treated as 0.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROLLOUT_GEN_H
#define ML_RL_ROLLOUT_ROLLOUT_GEN_H

#include <stdatomic.h>

#include "rl/rollout/partial_buffer.h"
#include "rl/rollout/rollout.h"
#include "rl/rollout/group.h"

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
