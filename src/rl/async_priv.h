/* flow_priv.h - what the files of the flow share. */
#ifndef ML_RL_ASYNC_PRIV_H
#define ML_RL_ASYNC_PRIV_H

#include "rl/partial_buffer.h"
#include "rl/drop_reasons.h"
#include "rl/async.h"

/* A group from its first token until a round has it; everything of it is in its arena. */
typedef struct ml_async_group {
    struct ml_async_group *next;
    ml_async *flow;
    ml_arena arena;
    ml_gen_tasks flights;
    ml_group id;
    ml_gen_task **flight; /* [id.n_sample] */
    int32_t n_left;       /* samples that have not landed */
} ml_async_group;

typedef struct ml_async_list {
    ml_async_group *first, *last;
    int64_t n;
} ml_async_list;

/* What is told of a round. */
typedef struct ml_async_counts {
    int64_t n_aborted, n_stale; /* groups that were turned away */
    int64_t n_drawn;            /* tokens */
} ml_async_counts;

struct ml_async {
    ml_async_opts opts;
    pthread_t worker;
    bool started;

    /* Of all below.  Taken again by who holds it: an environment's reply may end samples. */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool stopping, held_up;
    ml_async_list flying, queue; /* under way, or landed and not judged; waiting */
    ml_partial_buffer held;      /* of a snapshot, to go on with */
    uint64_t *published;         /* [n_published] versions, ascending */
    int64_t n_published, cap_published;
    int64_t n_turned_down; /* by the filter, since it kept one */
    ml_async_counts counts;
    ml_arena reasons; /* of the rejections; emptied every round */
    ml_drop_reasons rejections;
    ml_status st; /* of the worker */
    ml_err err;
};

/* --- flow_work.c --- */

/* The worker's thread. */
void *ml_async_work(void *flow);

/* With the lock.  A group that no round gets: dropped, or asked again. */
void ml_async_turn_away(ml_async *s, ml_async_group *g);
void ml_async_free_group(ml_async_group *g);

ml_async_group *ml_async_pop(ml_async_list *l);
void ml_async_push(ml_async_list *l, ml_async_group *g);

/* --- flow_buffer.c --- */

/* With the lock: what the row of the options says of the groups that wait.  Those it wants, at
 * most `want`, go to `out`; *n is how many. */
ml_status ml_async_pick(ml_async *s, ml_async_group **out, int64_t want, int64_t *n,
                        ml_err *err);

/* --- flow.c --- */

/* Publications since the group's oldest token. */
int64_t ml_async_staleness(const ml_async *s, const ml_async_group *g);

/* --- flow_save.c --- */

/* Part of a snapshot: members of a JSON object. */
void ml_async_save(void *flow, ml_text *out);
ml_status ml_async_load(void *flow, ml_str state, const char *name, ml_err *err);

#endif
