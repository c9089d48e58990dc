/* rollout.h - where the samples of a round come from.
 *
 * The loop knows a rollout as a function: conversations that are only read
 * (ml_rollout_sft), a recording (ml_rollout_replay), or a model that answers prompts
 * (rollout_gen.h).
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_H
#define ML_RL_ROLLOUT_H

#include "rl/train_run.h"

typedef struct ml_rollout_batch {
    const ml_sample **sample; /* [n] in the order of their indices */
    int64_t n;
    const ml_sample **ended; /* [n_ended] with those of dropped groups; NULL: not known */
    const uint8_t *kept;     /* [n_ended] */
    int64_t n_ended;
    ml_metrics figures; /* rollout/...: what was found while they were made */
    int64_t n_drawn;    /* tokens that were generated, of dropped samples too */
    double made_s;   /* seconds it took to make them, if not those of the call; 0: those */
    double engine_s; /* of them, inside the steps of an engine of this process */
} ml_rollout_batch;

/* With samples of its own, in the arena; figures are added. */
void ml_rollout_batch_copy(ml_rollout_batch *out, ml_arena *a, const ml_rollout_batch *in);
/* Adds what can be seen of the samples: lengths, groups of one reward, pass rates. */
void ml_rollout_batch_report(ml_rollout_batch *h, int32_t n_per_group, bool turns);

typedef struct ml_rollout {
    /* The samples of a round; they live in the arena. */
    ml_status (*collect)(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err);
    /* Until no round is being made behind the caller's back; the next collect may begin one.
     * NULL: none ever is. */
    ml_status (*rest)(void *ud, ml_err *err);
    /* What is being made ends soon, as a failure: from another thread than collect.  May be
     * NULL. */
    void (*cancel)(void *ud);
    /* What the next round needs of this one: appends members of a JSON object, without
     * braces; and back, from the object with these and others.  NULL: nothing. */
    void (*save)(void *ud, ml_text *out);
    ml_status (*load)(void *ud, ml_str state, const char *name, ml_err *err);
    void *ud;
} ml_rollout;

/* Conversations of the run's data set as samples: nothing is generated. */
typedef struct ml_sft_rollout {
    ml_train_run *run;
    ml_encoder *encoder;
} ml_sft_rollout;

void ml_sft_rollout_init(ml_sft_rollout *s, ml_train_run *run);
void ml_sft_rollout_release(ml_sft_rollout *s); /* zeros are fine */
ml_rollout ml_rollout_sft(ml_sft_rollout *s);

/* Recorded rounds. */
typedef struct ml_replay_rollout {
    const char *template; /* a path with {rollout_id} in it */
    double keep;          /* share of a round, from its beginning and its end; 0: all */
    int64_t n_vocab;      /* tokens of the model that is trained on it */
} ml_replay_rollout;

ml_rollout ml_rollout_replay(ml_replay_rollout *r);
/* Records a round. */
ml_status ml_rollout_record(const char *template, int64_t rollout,
                            const ml_rollout_batch *h, ml_err *err);
/* As text: a line of JSON per sample with prompt, response, label, reward and status. */
ml_status ml_rollout_record_text(const char *template, int64_t rollout,
                                 const ml_rollout_batch *h, ml_err *err);

#endif
