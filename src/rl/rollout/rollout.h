/* rollout.h - the interface that produces the samples of a rollout.
 *
 * The loop calls a rollout through function pointers.  Implementations read conversations
 * (ml_rollout_sft), replay a recording (ml_rollout_replay), or generate with a model
 * (rollout_gen.h).
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROLLOUT_H
#define ML_RL_ROLLOUT_ROLLOUT_H

#include "rl/recipe.h"
#include "rl/data/data_source.h"
#include "rl/record/metrics.h"
#include "rl/sample.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_rollout_batch {
    const ml_sample **sample; /* [n] ordered by index */
    int64_t n;
    const ml_sample **ended; /* [n_ended] with samples of dropped groups; NULL: not known */
    const uint8_t *kept;     /* [n_ended] */
    int64_t n_ended;
    ml_metrics metrics; /* rollout/...: measured during generation */
    int64_t n_drawn;    /* generated tokens, including those of dropped samples */
    /* Seconds of generation, if not the duration of the call; 0: use the call's. */
    double made_s;
    double engine_s; /* seconds of made_s inside engine steps of this process */
    struct {
        int64_t n_verify, n_draft, n_accepted; /* as in ml_gen_stats */
    } drafts;                                  /* of these engine steps */
} ml_rollout_batch;

/* Copies the batch with its samples into the arena; adds the metrics. */
void ml_rollout_batch_copy(ml_rollout_batch *out, ml_arena *a, const ml_rollout_batch *in);
/* Adds the metrics derived from the samples: lengths, groups of equal reward, pass
 * rates. */
void ml_rollout_batch_report(ml_rollout_batch *h, int32_t n_per_group, bool turns);

typedef struct ml_rollout {
    /* Returns the samples of a rollout; they are allocated in the arena. */
    ml_status (*collect)(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err);
    /* Waits until no rollout is being generated in the background; the next collect may
     * start one.  NULL: the implementation never generates in the background. */
    ml_status (*rest)(void *ud, ml_err *err);
    /* Makes a running collect fail soon.  Called from another thread than collect.  May be
     * NULL. */
    void (*cancel)(void *ud);
    /* The state that the next rollout needs: save appends members of a JSON object,
     * without braces; load reads them from an object that also has other members.  NULL:
     * no state. */
    void (*save)(void *ud, ml_text *out);
    ml_status (*load)(void *ud, ml_str state, const char *name, ml_err *err);
    void *ud;
} ml_rollout;

/* The conversations of the run's data set as samples; nothing is generated.  Preferences: two
 * samples of a row (data/preference_sample.h). */
typedef struct ml_sft_rollout {
    ml_prompt_feed feed;
    ml_preference_opts preference;
    int32_t end_token; /* of preferences that are text */
    bool reward;       /* samples of a reward model, of pairs or of single answers */
    int32_t pad_token; /* which its samples do not end with */
    const ml_chat_template *chat_template;
    ml_encoder *encoder;
} ml_sft_rollout;

void ml_sft_rollout_init(ml_sft_rollout *s, const ml_prompt_feed *feed,
                         const ml_tokenizer *tokenizer,
                         const ml_chat_template *chat_template);
void ml_sft_rollout_release(ml_sft_rollout *s); /* zeros are allowed */
ml_rollout ml_rollout_sft(ml_sft_rollout *s);

/* Recorded rollouts. */
typedef struct ml_replay_rollout {
    const char *template; /* a path with {rollout_id} in it */
    double keep; /* share of a rollout, half from its start and half from its end; 0: all */
    int64_t n_vocab; /* vocabulary size of the trained model */
} ml_replay_rollout;

ml_rollout ml_rollout_replay(ml_replay_rollout *r);
/* Records a rollout batch. */
ml_status ml_rollout_record(const char *template, int64_t rollout,
                            const ml_rollout_batch *h, ml_err *err);
/* Writes a rollout batch as text: a line of JSON per sample with prompt, response, label,
 * reward and status. */
ml_status ml_rollout_record_text(const char *template, int64_t rollout,
                                 const ml_rollout_batch *h, ml_err *err);

#endif
