/* group.h - the life of a group of samples, for every rollout and for evaluations.
 *
 *     PENDING --> GENERATING --> GRADING --> DONE: kept, or dropped for a reason
 *
 *   PENDING     created; no sample has been submitted
 *   GENERATING  at least one sample has not ended: it decodes, or it waits for a reply of
 *               the environment
 *   GRADING     all samples have ended; at least one waits for its reward
 *   DONE        all samples have ended and have been graded, or will not be
 *
 * A set owns the groups that are generated together.  Its callback runs on the generator's
 * thread between two steps: it takes the environment's replies that have arrived, continues
 * their samples, and calls the policy of the set's owner, which decides what to keep, start
 * and abort.  The policies: a rollout batch (rollout_gen.c), a queue of groups (async.c), an
 * extension (rollout_custom.c), a data set (evals.c).
 *
 * Threads of the environment and of the rewards only mark a reply or a reward as arrived,
 * under the set's lock, and wake those who wait; they never call back into a policy.
 *
 * thread: a set is used by its owner while the generator is paused or before the first group
 * is started, and by the generator's thread afterwards.  Functions that may be called from
 * any thread say so.
 *
 * Lock order: ml_group_set.lock first, then the internal mutex of the generator.  Neither is
 * held while the policy, an environment, a reward or a filter runs. */
#ifndef ML_RL_ROLLOUT_GROUP_H
#define ML_RL_ROLLOUT_GROUP_H

#include <pthread.h>

#include "rl/rollout/drop_reasons.h"
#include "rl/rollout/gen_task.h"
#include "rl/rollout/group_filter.h"

typedef enum ml_group_state {
    ML_GROUP_PENDING,
    ML_GROUP_GENERATING,
    ML_GROUP_GRADING,
    ML_GROUP_DONE,
} ml_group_state;

/* The decision about a group. */
typedef enum ml_group_fate {
    ML_GROUP_UNDECIDED,
    ML_GROUP_KEPT,
    ML_GROUP_ABORTED,   /* dropped: the generator aborted a sample */
    ML_GROUP_NO_REWARD, /* dropped: a sample has no reward */
    ML_GROUP_FILTERED,  /* dropped: the filter refused it */
    ML_GROUP_SURPLUS,   /* dropped: enough others are kept */
} ml_group_fate;

typedef struct ml_gen_group {
    struct ml_gen_group *next; /* in its list */
    struct ml_gen_group *next_ended;
    struct ml_group_set *set;
    ml_group id;
    ml_arena *arena;    /* holds the samples */
    ml_gen_task **task; /* [id.n_sample] */
    int64_t n_drawn;    /* generated tokens */
    ml_group_fate fate;
    bool ended; /* the policy has seen that all samples have ended */
    /* Protected by the set's lock. */
    ml_group_state state;
    int32_t n_left; /* samples that have not ended */
    int32_t n_open; /* samples that are not both ended and graded */
    bool spoiled;   /* one was aborted, failed or not started: none is graded together */
} ml_gen_group;

typedef struct ml_group_list {
    ml_gen_group *first, *last;
    int64_t n;
} ml_group_list;

void ml_group_list_push(ml_group_list *l, ml_gen_group *g);
void ml_group_list_remove(ml_group_list *l, ml_gen_group *g);
/* Writes the samples of all groups, or of those that are kept, to `out`, in order; returns
 * their number. */
int64_t ml_group_list_samples(const ml_group_list *l, bool kept_only,
                              const ml_sample **out);
/* The samples of kept groups with those that a function made of them besides, each after its
 * first; out NULL: only their number. */
int64_t ml_group_list_kept(const ml_group_list *l, const ml_sample **out);
int64_t ml_group_list_drawn(const ml_group_list *l); /* sum of n_drawn */

typedef struct ml_group_set {
    const ml_gen_ctx *ctx;
    const ml_sampling *how;
    const ml_dataset *dataset;
    ml_encoder *encoder; /* of the thread that starts groups */
    /* The policy, called after each step in which requests ended, replies arrived or a
     * group's rewards were complete, until the set is closed.  NULL: the owner starts all groups at once. */
    void (*decide)(void *ud);
    void *ud;
    /* The order in which groups end decides which are kept: the next step begins when all
     * replies of the environment are there, so that the order does not depend on timing. */
    bool lockstep;
    int64_t n_dropped; /* in a row; see ml_group_set_hopeless */
    ml_gen_task *waiting,
        **last_waiting;   /* for replies, in the order in which turns ended */
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t change;
    ml_group_list groups;
    int64_t n_open;       /* tasks that are being generated or graded */
    int64_t n_unanswered; /* of these, waiting for the environment */
    bool closed;          /* no more groups will be started */
} ml_group_set;

void ml_group_set_init(ml_group_set *s, const ml_gen_ctx *ctx, const ml_sampling *how,
                       const ml_dataset *dataset);
void ml_group_set_release(ml_group_set *s); /* does not free the groups */

/* Appends a group in the state PENDING.  The group and its samples are allocated in the
 * arena.  From any thread. */
ml_gen_group *ml_group_set_add(ml_group_set *s, ml_group id, ml_arena *a);

/* Makes the samples of a group, with their prompts. */
ml_status ml_gen_group_prepare(ml_gen_group *g, ml_err *err);
/* Makes and starts the samples of a group.  Their random number streams are draw + 0, 1, ... */
ml_status ml_gen_group_start(ml_gen_group *g, uint64_t draw, ml_err *err);
/* Continues samples that were aborted before (partial rollout).  Samples that had ended are
 * only graded, if they have no reward.  A response longer than max_new is cut there; it ends
 * as truncated and is graded again.  mask_old: existing tokens are masked. */
ml_status ml_gen_group_resume(ml_gen_group *g, const ml_sample *s /* [id.n_sample] */,
                              bool mask_old, ml_err *err);
/* Aborts the samples that have not ended.  From any thread. */
void ml_gen_group_abort(ml_gen_group *g);
ml_group_state ml_gen_group_state(ml_gen_group *g); /* from any thread */
void ml_gen_group_wait(ml_gen_group *g);            /* until DONE */

/* Decides about a group that is DONE: sets its fate.  A missing reward is never treated as
 * 0: the filter (NULL: none) sees complete groups only.  `reason` is the name under which a
 * drop is counted, or "". */
ml_status ml_gen_group_decide(ml_gen_group *g, const miles_group_filter *filter,
                              char reason[ML_REASON_CAP], ml_err *err);

/* Counts a decision.  ML_EFORMAT: of very many groups in a row, none was kept; without this
 * limit, a filter that keeps nothing would make a rollout endless.  wanted: groups of a
 * rollout batch. */
ml_status ml_group_set_count(ml_group_set *s, const ml_gen_group *g, int64_t wanted,
                             ml_err *err);

/* Generates: pauses the generator, so that the step in which the first groups are scheduled
 * does not depend on timing, calls `start`, resumes, and returns when every started sample
 * has ended and has been graded.  Without a policy, the set is closed after `start`. */
ml_status ml_group_set_generate(ml_group_set *s, ml_status (*start)(void *ud, ml_err *err),
                                void *ud, ml_err *err);
/* No more groups will be started; aborts the undecided ones. */
void ml_group_set_close(ml_group_set *s);

/* The set's step-end callback, for owners that do not use ml_group_set_generate. */
void ml_group_set_step_end(void *set);
/* Waits for the environment, and takes its replies.  The generator is paused. */
void ml_group_set_take_all_replies(ml_group_set *s);

#endif
