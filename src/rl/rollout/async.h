/* async.h - async rollout: generation never stops, training takes groups from a queue.
 *
 * A worker thread keeps a number of groups generating.  Groups whose samples have all ended
 * and been graded wait in a queue, oldest first, from which the training loop takes its
 * rollout batches.  Weights are published while groups are generating, so a sample may have
 * tokens of several weight versions; the version is recorded per token.  A group is dropped
 * and counted if its oldest token is too many publications old when the loop takes it.
 *
 * Which groups a rollout batch contains depends on timing.  Rollout batches are therefore
 * recorded, and training on a recording gives the same weights.  A snapshot includes all
 * groups that are generating or queued.
 *
 * thread: the training loop's opens, collects, pauses and closes. */
#ifndef ML_RL_ROLLOUT_ASYNC_H
#define ML_RL_ROLLOUT_ASYNC_H

#include "rl/rollout/rollout.h"
#include "rl/rollout/group.h"

typedef struct ml_async ml_async;

typedef struct ml_async_opts {
    ml_train_run *run;
    ml_gen_ctx gen_ctx;
    ml_sampling how;
    const miles_group_filter *filter; /* NULL: all groups are kept */
    const miles_buffer *buffer;       /* selects among queued groups; NULL: the oldest */
    int64_t max_groups;               /* generating at the same time */
    int64_t capacity;                 /* queued groups above which no new ones start */
    int64_t max_stale;                /* in publications of weights; -1: no limit */
    bool retry;    /* prompts of stale or aborted groups return to the data source */
    bool mask_old; /* train only the tokens of a sample's newest weights */
    void (*say)(const char *line); /* prints a status line */
} ml_async_opts;

/* The first collect starts the worker thread. */
ml_status ml_async_open(ml_async **out, const ml_async_opts *o, ml_err *err);
/* Aborts all groups that are generating.  Call it before closing the generator.  NULL is
 * allowed. */
void ml_async_close(ml_async *s);

ml_rollout ml_rollout_async(ml_async *s);

/* Records that the generator has new weights.  ML_ENOMEM: the version could not be
 * recorded, so staleness can no longer be counted. */
ml_status ml_async_published(ml_async *s, uint64_t version, ml_err *err);

/* true: the worker starts no more groups, because the generator is needed for something
 * else (an evaluation, a snapshot).  false: it may start groups again. */
void ml_async_hold(ml_async *s, bool hold);

#endif
