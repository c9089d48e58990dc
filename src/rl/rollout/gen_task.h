/* gen_task.h - a generation task: a sample while it is being generated and graded.
 *
 * The tokens of a sample arrive on the generator's thread.  After the last one, the task
 * submits the text to the rewards, so that grading overlaps with the generation of other
 * samples.  The content of a sample depends neither on other samples nor on timing.
 *
 * If there is an environment (turns.h), the end of the model's turn is not the end of the
 * sample: the task submits the turn, and continues when the reply is there.  Meanwhile the
 * generator decodes other samples.
 *
 * thread: while a task is open it is owned by the generator's thread, by a thread of the
 * environment or by a reward thread; before and afterwards, by the owner of its group
 * (rollout/group.h). */
#ifndef ML_RL_ROLLOUT_GEN_TASK_H
#define ML_RL_ROLLOUT_GEN_TASK_H

#include <stdatomic.h>

#include "base/work_count.h"
#include "gen/gen.h"
#include "rl/data/data_source.h"
#include "rl/data/prompt_encoder.h"
#include "rl/reward/rewards.h"
#include "rl/sample.h"
#include "rl/env/turns.h"

struct ml_gen_group;

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
    bool support;              /* samples have their sampling supports */
} ml_sampling;

/* The context of generation tasks; the caller owns everything in it. */
typedef struct ml_gen_ctx {
    ml_gen *gen;
    ml_rewards *rewards; /* NULL: samples are not graded */
    const ml_tokenizer *tokenizer;
    const ml_chat_template *chat_template; /* NULL: prompts are text */
    ml_turns *turns;                       /* NULL: an answer has a single turn */
    /* Workers of a Python function that generates samples, with requests to the run's
     * engine; NULL: the generator does. */
    ml_worker_pool *generate;
    bool evaluates;     /* tells the function so */
    int64_t n_vocab;    /* of the model; its tokens are checked */
    const int32_t *end; /* [n_end] the model's end tokens */
    int32_t n_end;
    ml_work_count
        *work_count;    /* progress counter of generated and graded answers, or NULL */
    int32_t context;    /* maximum number of tokens of a conversation */
    bool group_rewards; /* grade a group's samples together, when all have ended */
} ml_gen_ctx;

typedef struct ml_gen_task {
    ml_sample sample;
    struct ml_gen_group *group;
    int32_t *token;  /* [prompt + max_new] writable alias of sample.token */
    int64_t *wide;   /* the tokens as int64, for rewards */
    uint8_t *mask;   /* writable alias of sample.mask, or NULL */
    int32_t turn_at; /* index in the response at which the model's turn began */
    ml_turn *turn;   /* NULL: there is no environment */
    char *support;   /* [support_cap] writable alias of sample.supports */
    size_t support_cap;
    struct ml_gen_task *next_waiting; /* for a reply of the environment */
    bool replied;                     /* protected by the set's lock */
    ml_str messages;                  /* of the prompt, JSON; empty: it is text */
    ml_text made;                     /* the answer of a function that generates it */
    ml_worker_end made_end;
    ml_sample *more; /* [n_more] further samples that the function made of this one */
    int32_t n_more;
    _Atomic uint64_t ticket;
    uint64_t draw;
    bool begun;
    atomic_bool ended, aborted; /* atomic: another thread may abort the task */
    miles_reward_in question;
    ml_reward_outcome outcome;
    char why[1000]; /* why there is no reward */
} ml_gen_task;

#endif
