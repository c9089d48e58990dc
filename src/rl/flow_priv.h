/* flow_priv.h - what the files of the flow share. */
#ifndef ML_RL_FLOW_PRIV_H
#define ML_RL_FLOW_PRIV_H

#include "rl/held.h"
#include "rl/rejections.h"
#include "rl/flow.h"

/* A group from its first token until a round has it; everything of it is in its arena. */
typedef struct ml_flow_group {
    struct ml_flow_group *next;
    ml_flow *flow;
    ml_arena arena;
    ml_flights flights;
    ml_group id;
    ml_flight **flight; /* [id.n_sample] */
    int32_t n_left;     /* samples that have not landed */
} ml_flow_group;

typedef struct ml_flow_list {
    ml_flow_group *first, *last;
    int64_t n;
} ml_flow_list;

/* What is told of a round. */
typedef struct ml_flow_counts {
    int64_t n_aborted, n_stale; /* groups that were turned away */
    int64_t n_drawn;            /* tokens */
} ml_flow_counts;

struct ml_flow {
    ml_flow_opts opts;
    pthread_t worker;
    bool started;

    /* Of all below.  Taken again by who holds it: an environment's reply may end samples. */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool stopping, held_up;
    ml_flow_list flying, queue; /* under way, or landed and not judged; waiting */
    ml_held held;               /* of a snapshot, to go on with */
    uint64_t *published;        /* [n_published] versions, ascending */
    int64_t n_published, cap_published;
    int64_t n_turned_down; /* by the filter, since it kept one */
    ml_flow_counts counts;
    ml_arena reasons; /* of the rejections; emptied every round */
    ml_rejections rejections;
    ml_status st; /* of the worker */
    ml_err err;
};

/* --- flow_work.c --- */

/* The worker's thread. */
void *ml_flow_work(void *flow);

/* With the lock.  A group that no round gets: dropped, or asked again. */
void ml_flow_turn_away(ml_flow *s, ml_flow_group *g);
void ml_flow_free_group(ml_flow_group *g);

ml_flow_group *ml_flow_pop(ml_flow_list *l);
void ml_flow_push(ml_flow_list *l, ml_flow_group *g);

/* --- flow_buffer.c --- */

/* With the lock: what the row of the options says of the groups that wait.  Those it wants, at
 * most `want`, go to `out`; *n is how many. */
ml_status ml_flow_pick(ml_flow *s, ml_flow_group **out, int64_t want, int64_t *n,
                       ml_err *err);

/* --- flow.c --- */

/* Publications since the group's oldest token. */
int64_t ml_flow_staleness(const ml_flow *s, const ml_flow_group *g);

/* --- flow_save.c --- */

/* Part of a snapshot: members of a JSON object. */
void ml_flow_save(void *flow, ml_text *out);
ml_status ml_flow_load(void *flow, ml_str state, const char *name, ml_err *err);

#endif
