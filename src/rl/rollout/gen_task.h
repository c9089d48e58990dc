/* gen_task.h - generation tasks: samples while they are being generated and graded.
 *
 * The tokens of a sample arrive on the generator's thread.  After the last one, the task
 * submits the text to the rewards, so that grading overlaps with the generation of other
 * samples.  The content of a sample depends neither on other samples nor on timing.
 *
 * If there is an environment (turns.h), the end of the model's turn is not the end of the
 * sample: the task is put into `pending_turn` and continues when ml_gen_tasks_continue_turns is
 * called between two engine steps.
 *
 * thread: while tasks are open, the generator's thread owns all data; before the first one
 * and after ml_gen_tasks_wait, the caller does. */
#ifndef ML_RL_ROLLOUT_GEN_TASK_H
#define ML_RL_ROLLOUT_GEN_TASK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/work_count.h"
#include "gen/gen.h"
#include "rl/data/data_source.h"
#include "rl/data/prompt_encoder.h"
#include "rl/reward/rewards.h"
#include "rl/sample.h"
#include "rl/env/turns.h"

struct ml_gen_task;

/* Sampling parameters. */
typedef struct ml_sampling {
    float temperature, top_p;
    int32_t top_k; /* 0: all */
    int32_t min_new, max_new;
    const ml_str *stop;
    const int32_t *stop_id;
    int32_t n_stop, n_stop_id;
    uint64_t seed;
    bool skip_special;         /* leave special tokens out of the text */
    bool routed[ML_N_ROUTING]; /* samples have a routing record of this kind */
} ml_sampling;

/* The context of generation tasks; the caller owns everything in it. */
typedef struct ml_gen_ctx {
    ml_gen *gen;
    ml_rewards *rewards; /* NULL: samples are not graded */
    const ml_tokenizer *tokenizer;
    const ml_chat_template *chat_template; /* NULL: prompts are text */
    ml_turns *turns;                       /* NULL: an answer has a single turn */
    const int32_t *end;                    /* [n_end] the model's end tokens */
    int32_t n_end;
    ml_work_count
        *work_count;    /* progress counter of generated and graded answers, or NULL */
    int32_t context;    /* maximum number of tokens of a conversation */
    bool group_rewards; /* grade a group's samples together, when all have ended */
} ml_gen_ctx;

typedef struct ml_gen_tasks {
    const ml_gen_ctx *at;
    const ml_sampling *how;
    const ml_dataset *dataset;
    ml_arena *arena; /* holds samples and all other data */
    ml_encoder *encoder;
    int64_t n_drawn;                   /* generated tokens */
    struct ml_gen_task **pending_turn; /* [n_heard] tasks whose turn has ended */
    int64_t n_pending_turn, cap_pending_turn;
    /* Called once for every started sample, when it has ended and has been graded, on the
     * generator's thread or a reward thread.  It is the last function to use the task.
     * May be NULL. */
    void (*on_complete)(void *ud, struct ml_gen_task *x);
    void *on_complete_ud;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int64_t n_open;  /* tasks being generated or graded */
    int64_t n_begun; /* tasks started so far */
    bool done;       /* no more tasks will be started */
} ml_gen_tasks;

/* The samples of a prompt, if they are graded together. */
typedef struct ml_reward_group {
    struct ml_gen_task **member; /* [n] */
    const miles_reward_in **question;
    void **ud;
    int32_t n, n_left; /* samples; those that have not ended yet */
    bool spoiled;      /* one was aborted, failed or not started: none is graded */
} ml_reward_group;

typedef struct ml_gen_task {
    ml_sample sample;
    ml_gen_tasks *all;
    int32_t *token;  /* [prompt + max_new] writable alias of sample.token */
    int64_t *wide;   /* the tokens as int64, for rewards */
    uint8_t *mask;   /* writable alias of sample.mask, or NULL */
    int32_t turn_at; /* index in the response at which the model's turn began */
    ml_turn *turn;   /* NULL: there is no environment */
    _Atomic uint64_t ticket;
    uint64_t draw;
    ml_reward_group *reward_group; /* NULL: it is graded alone */
    bool begun;
    atomic_bool ended, aborted; /* atomic: another thread may abort the task */
    miles_reward_in question;
    ml_reward_outcome outcome;
    char why[1000]; /* why there is no reward */
} ml_gen_task;

void ml_gen_tasks_init(ml_gen_tasks *f, const ml_gen_ctx *at, const ml_sampling *how,
                       const ml_dataset *dataset, ml_arena *a);
void ml_gen_tasks_release(ml_gen_tasks *f);

/* Starts the samples of a group.  Their random number streams are draw + 0, 1, ... */
ml_status ml_gen_tasks_start(ml_gen_tasks *f, ml_gen_task **out /* [n_sample] */,
                             const ml_group *group, uint64_t draw, ml_err *err);

/* Continues n samples that were aborted before (partial rollout).  Samples that had ended
 * are only graded, if they have no reward.  A response longer than max_new is cut there;
 * it ends as truncated and is graded again.  mask_old: existing tokens are masked. */
ml_status ml_gen_tasks_resume(ml_gen_tasks *f, ml_gen_task **out /* [n] */,
                              const ml_sample *s, int32_t n, bool mask_old, ml_err *err);

/* Sends the samples in `pending_turn` to the environment and appends its replies: each sample then
 * continues or ends.  If there is an environment, the step-end callback (gen->on_step_end) calls
 * this before anything else. */
void ml_gen_tasks_continue_turns(ml_gen_tasks *f);

/* Aborts those of n tasks that have not ended. */
void ml_gen_tasks_abort(ml_gen_tasks *f, ml_gen_task *const *task, int64_t n);

/* Waits until ml_gen_tasks_done was called and no task is open. */
void ml_gen_tasks_wait(ml_gen_tasks *f);
/* Declares that no more tasks will be started. */
void ml_gen_tasks_done(ml_gen_tasks *f);

#endif
