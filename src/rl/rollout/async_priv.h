/* async_priv.h - shared by the files of the async rollout.
 *
 * A group (rollout/group.h) is in the list of the set until it is DONE.  Then the worker
 * decides about it: it is queued, or dropped and freed.  collect takes queued groups, copies
 * their samples to the rollout batch and frees them; those that are too stale, or that the
 * buffer extension refuses, it drops.  With opts.retry the prompt of a dropped group returns
 * to the data source, except after a missing reward or a refusal by the filter.
 *
 * All fields of ml_async are protected by the lock of its set.  The worker starts groups and
 * decides about them without the lock; `busy` says so, and ml_async_hold waits until it is
 * not set. */
#ifndef ML_RL_ROLLOUT_ASYNC_PRIV_H
#define ML_RL_ROLLOUT_ASYNC_PRIV_H

#include "rl/rollout/async.h"
#include "rl/rollout/partial_buffer.h"

/* Counters, reset with each rollout batch. */
typedef struct ml_async_counts {
    int64_t n_aborted, n_stale; /* dropped groups */
    int64_t n_drawn;            /* tokens generated for dropped groups */
} ml_async_counts;

struct ml_async {
    ml_async_opts opts;
    pthread_t worker;
    bool started;

    ml_group_set set; /* groups that are generated or graded; its lock protects the rest */
    bool stopping, paused;
    bool busy;                        /* the worker starts a group, or decides about one */
    ml_group_list queue;              /* complete, graded and accepted by the filter */
    ml_partial_buffer partial_buffer; /* groups from a snapshot, to be continued first */
    uint64_t *published;              /* [n_published] weight versions, ascending */
    int64_t n_published, cap_published;
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
void ml_async_drop_group(ml_async *s, ml_gen_group *g);
void ml_async_free_group(ml_gen_group *g);

ml_gen_group *ml_async_pop(ml_group_list *l); /* NULL: it is empty */

#endif
