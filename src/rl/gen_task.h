/* flight.h - samples under way: asked of a generator, then scored.
 *
 * A flight is a sample that is being drawn.  Its tokens arrive on the generator's thread;
 * when the last one is there its text goes to the rewards, which overlap with what is
 * still being generated.  Nothing a sample becomes depends on what else is under way or
 * how long anything took.
 *
 * Where there is an environment (turns.h), the end of the model's turn is not the end of
 * the sample: it is heard, and goes on when ml_gen_tasks_continue_turns is called between two steps.
 *
 * thread: while flights are under way, everything here belongs to the generator's thread;
 * before the first and after ml_gen_tasks_wait, to the caller's. */
#ifndef ML_RL_GEN_TASK_H
#define ML_RL_GEN_TASK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/work_count.h"
#include "engine/gen.h"
#include "rl/data_source.h"
#include "rl/prompt_encoder.h"
#include "rl/reward/rewards.h"
#include "rl/sample.h"
#include "rl/turns.h"

struct ml_gen_task;

/* How answers are drawn. */
typedef struct ml_sampling {
    float temperature, top_p;
    int32_t top_k; /* 0: all */
    int32_t min_new, max_new;
    const ml_str *stop;
    const int32_t *stop_id;
    int32_t n_stop, n_stop_id;
    uint64_t seed;
    bool skip_special;         /* special tokens are no part of the text */
    bool routed[ML_N_ROUTING]; /* samples record what the model chose */
} ml_sampling;

/* What flights need; all of it is the caller's. */
typedef struct ml_gen_ctx {
    ml_gen *gen;
    ml_rewards *rewards; /* NULL: samples get none */
    const ml_tokenizer *tokenizer;
    const ml_chat_template *chat_template; /* NULL: prompts are text */
    ml_turns *turns;                       /* NULL: an answer is one turn */
    const int32_t *end;                    /* [n_end] the model's end tokens */
    int32_t n_end;
    ml_work_count *tally; /* of answers with their rewards; NULL: nobody counts */
    int32_t context;      /* tokens of a conversation at most */
    bool group_rewards;   /* a group's samples are graded when all of them have ended */
} ml_gen_ctx;

typedef struct ml_gen_tasks {
    const ml_gen_ctx *at;
    const ml_sampling *how;
    const ml_dataset *dataset;
    ml_arena *arena; /* of samples and everything else */
    ml_encoder *encoder;
    int64_t n_drawn;            /* tokens */
    struct ml_gen_task **heard; /* [n_heard] whose turn has ended */
    int64_t n_heard, cap_heard;
    /* Called once for every sample that was started, when it has ended and its reward is
     * there: on the generator's thread or a reward's, and the last to touch it.  May be NULL. */
    void (*landed)(void *ud, struct ml_gen_task *x);
    void *landed_ud;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int64_t n_open;  /* under way, their rewards included */
    int64_t n_begun; /* that ever were */
    bool done;       /* nobody will start another */
} ml_gen_tasks;

/* The samples of a prompt, where they are graded together. */
typedef struct ml_reward_group {
    struct ml_gen_task **mate; /* [n] */
    const miles_reward_in **question;
    void **ud;
    int32_t n, n_left; /* that have not ended yet */
    bool spoiled;      /* one of them has no end: none is graded */
} ml_reward_group;

typedef struct ml_gen_task {
    ml_sample sample;
    ml_gen_tasks *all;
    int32_t *token;  /* [prompt + max_new] the sample's own, to be written */
    int64_t *wide;   /* as rewards see them */
    uint8_t *mask;   /* the sample's own, or NULL */
    int32_t turn_at; /* of the response: where the model's turn began */
    ml_turn *turn;   /* NULL: there is no environment */
    _Atomic uint64_t ticket;
    uint64_t draw;
    ml_reward_group *crowd; /* NULL: it is graded alone */
    bool begun;
    atomic_bool ended, aborted; /* who ends it may not be who makes it */
    miles_reward_in question;
    ml_reward_outcome outcome;
    char why[1000]; /* there is no reward: a sentence */
} ml_gen_task;

void ml_gen_tasks_init(ml_gen_tasks *f, const ml_gen_ctx *at, const ml_sampling *how,
                       const ml_dataset *dataset, ml_arena *a);
void ml_gen_tasks_release(ml_gen_tasks *f);

/* Starts the samples of a group, numbered draw + 0, 1, ... for the random numbers. */
ml_status ml_gen_tasks_start(ml_gen_tasks *f, ml_gen_task **out /* [n_sample] */,
                             const ml_group *group, uint64_t draw, ml_err *err);

/* Goes on with n samples that were aborted before; those that had ended are asked for nothing
 * but a reward, where they have none.  A response longer than max_new is cut there and ends as
 * truncated, with a reward of its own.  mask_old: tokens they have already are not trained. */
ml_status ml_gen_tasks_resume(ml_gen_tasks *f, ml_gen_task **out /* [n] */,
                              const ml_sample *s, int32_t n, bool mask_old, ml_err *err);

/* Samples whose turn has ended get the environment's answer and go on, or end.  Where there is
 * an environment, a watcher of the generator calls this first thing. */
void ml_gen_tasks_continue_turns(ml_gen_tasks *f);

/* Ends those of n that are still under way. */
void ml_gen_tasks_abort(ml_gen_tasks *f, ml_gen_task *const *flight, int64_t n);

/* Until nobody will start another, and none is under way. */
void ml_gen_tasks_wait(ml_gen_tasks *f);
void ml_gen_tasks_done(ml_gen_tasks *f);

#endif
