/* async_priv.h - shared by the files of the async rollout.
 *
 * States of a group:
 *
 *     generating -> ended -> queued -> in a rollout batch
 *                     |         |
 *                     +---------+----> dropped
 *
 *   generating        in `generating`, n_left > 0: samples are being generated or graded
 *   ended             in `generating`, n_left == 0: the worker has not checked the group yet
 *   queued            in `queue`: complete, graded and accepted by the filter
 *   in a batch        collect has copied its samples to the rollout batch and frees it
 *   dropped           freed: by the worker if it was aborted, has no reward or the filter
 *                     refused it, or by collect if it is too stale or the buffer extension
 *                     refused it.  With opts.retry, the prompt returns to the data source,
 *                     except after a missing reward or a refusal by the filter.
 *
 * Lock order: ml_async.lock first, then the ml_gen_tasks.lock of a group or the internal
 * mutex of the generator or the rewards.  None of these is held when on_task_complete is called,
 * which locks ml_async.lock.  The generator's thread and the reward threads may block on
 * ml_async.lock: call gen->pause, gen->on_step_end and ml_rewards_wait without holding it. */
#ifndef ML_RL_ROLLOUT_ASYNC_PRIV_H
#define ML_RL_ROLLOUT_ASYNC_PRIV_H

#include "rl/rollout/partial_buffer.h"
#include "rl/rollout/drop_reasons.h"
#include "rl/rollout/async.h"

/* A group, from its first token until it is dropped or in a rollout batch.  Its arena owns
 * all of its data. */
typedef struct ml_async_group {
    struct ml_async_group *next;
    ml_async *async_rollout;
    ml_arena arena;
    ml_gen_tasks tasks;
    ml_group id;
    ml_gen_task **task; /* [id.n_sample] */
    int32_t n_left;     /* samples that are not yet both ended and graded */
} ml_async_group;

typedef struct ml_async_list {
    ml_async_group *first, *last;
    int64_t n;
} ml_async_list;

/* Counters, reset with each rollout batch. */
typedef struct ml_async_counts {
    int64_t n_aborted, n_stale; /* dropped groups */
    int64_t n_drawn;            /* tokens generated for dropped groups */
} ml_async_counts;

struct ml_async {
    ml_async_opts opts;
    pthread_t worker;
    bool started;

    /* Protects the fields below.  Recursive: on_ended holds it while an environment's reply
     * may end a sample, whose callback on_task_complete locks it again. */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool stopping, paused;
    ml_async_list generating, queue;  /* generating or ended; queued */
    ml_partial_buffer partial_buffer; /* groups from a snapshot, to be continued first */
    uint64_t *published;              /* [n_published] weight versions, ascending */
    int64_t n_published, cap_published;
    int64_t n_dropped; /* groups dropped by the worker since the last one it queued */
    ml_async_counts counts;
    ml_arena reasons; /* memory of `drop_reasons`; emptied with each rollout batch */
    ml_drop_reasons drop_reasons;
    ml_status st; /* error of the worker thread */
    ml_err err;
};

/* --- async_work.c --- */

/* Main function of the worker thread. */
void *ml_async_work(void *async_rollout);

/* Drops and frees a group; with opts.retry its prompt returns to the data source.  The
 * caller holds the lock. */
void ml_async_drop_group(ml_async *s, ml_async_group *g);
void ml_async_free_group(ml_async_group *g);

ml_async_group *ml_async_pop(ml_async_list *l);
void ml_async_push(ml_async_list *l, ml_async_group *g);

/* --- async_buffer.c --- */

/* Lets opts.buffer decide about each queued group.  The groups it selects for training, at
 * most `want`, go to `out`; *n is their number.  The caller holds the lock. */
ml_status ml_async_select(ml_async *s, ml_async_group **out, int64_t want, int64_t *n,
                          ml_err *err);

/* --- async.c --- */

/* Number of weight publications since the group's oldest token was generated. */
int64_t ml_async_staleness(const ml_async *s, const ml_async_group *g);

/* --- async_save.c --- */

/* This module's part of a snapshot: members of a JSON object. */
void ml_async_save(void *async_rollout, ml_text *out);
ml_status ml_async_load(void *async_rollout, ml_str state, const char *name, ml_err *err);

#endif
