/* flow.h - samples that are made all the time, whatever the trainer does.
 *
 * A worker keeps a number of groups under way.  Those whose samples have all ended and been
 * graded wait in a queue, oldest first, from which the loop takes a round's.  Weights are
 * published while groups are under way, so a sample may have tokens of several versions; each
 * token keeps its own.  A group with a token that is too many publications old when its turn
 * comes is turned away, and counted.
 *
 * What a round gets depends on the clock; so rounds are recorded, and a recording trains to
 * the same weights.  Everything under way and in the queue is part of a snapshot.
 *
 * thread: opened, collected from, paused and closed by the loop's. */
#ifndef ML_RL_ASYNC_H
#define ML_RL_ASYNC_H

#include "rl/gen_task.h"
#include "rl/group_filter.h"
#include "rl/rollout.h"

typedef struct ml_async ml_async;

typedef struct ml_async_opts {
    ml_train_run *run;
    ml_gen_ctx asker;
    ml_sampling how;
    const miles_group_filter *filter; /* NULL: all are kept */
    const miles_buffer *buffer;       /* picks among what waits; NULL: the oldest */
    int64_t max_groups;               /* under way */
    int64_t capacity;                 /* groups that wait, before no more are begun */
    int64_t max_stale;                /* publications; -1: any number */
    bool retry;    /* what is too old or was aborted is asked again, not dropped */
    bool mask_old; /* of a sample, only tokens of its newest weights are trained */
    void (*say)(const char *line); /* a line for who watches */
} ml_async_opts;

/* The worker starts with the first round. */
ml_status ml_async_open(ml_async **out, const ml_async_opts *o, ml_err *err);
/* Aborts what is under way; NULL is fine.  Before the generator is closed. */
void ml_async_close(ml_async *s);

ml_rollout ml_rollout_async(ml_async *s);

/* The generator has other weights now.  ML_ENOMEM: staleness can no longer be counted. */
ml_status ml_async_published(ml_async *s, uint64_t version, ml_err *err);

/* No group is begun until it is let go on: the generator is wanted for something else. */
void ml_async_hold(ml_async *s, bool hold);

#endif
