/* miles/plugin.h - the plugin interface: extensions written in C.
 *
 * An extension replaces or adds one function of the training loop.  It has a kind, a name
 * and a function over plain numbers and texts.  miles_kind lists the kinds: selecting
 * prompts, answering the model in multi-turn rollouts, rewards, filters, advantages, the
 * loss.  The built-in extensions use this header and little else.
 *
 * A shared object exports one function,
 *
 *     const miles_plugin *miles_plugin_entry(void);
 *
 * and the command line selects its extensions as "./my.so:name" wherever it accepts a
 * built-in name.  The plugin does not link against miles.
 *
 * Numbers are f64.  The host owns every array: inputs are valid during the call only;
 * outputs are sized by the host and filled by the extension.  An extension must return
 * the same bits for the same inputs and keep no state.  It is called from one thread at a
 * time unless its type says otherwise.
 *
 * ABI: see MILES_ABI_VERSION.  Every struct begins with its own size, and no field beyond
 * that size may be accessed.  Structs that may grow are passed as pointers. */
#ifndef MILES_PLUGIN_H
#define MILES_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version 2 is the first stable one.  From here on the interface only grows: fields, kinds
 * and functions are added at the end of their struct or enum, so that a plugin compiled
 * against version 2 works with every later miles. */
#define MILES_ABI_VERSION 2

/* ---- inputs ---- */

/* One response.  Arrays have n entries, one per response token; an array is NULL if the
 * run does not have it.  Entries at masked tokens must not influence any result. */
typedef struct miles_sample {
    size_t size;
    int64_t n;
    int64_t group;   /* shared by the samples of one prompt */
    int64_t rollout; /* shared by the pieces of one conversation; most rollouts are one
                        sample */
    double reward;   /* after normalisation within the group */

    const uint8_t *mask;  /* 1: the token is trained on */
    const uint8_t *kept;  /* mask without the tokens that the correction rejects */
    const double *weight; /* weight from the correction; NULL: 1 */

    const double *log_prob;         /* under the weights being trained */
    const double *old_log_prob;     /* under the weights at the start of the step */
    const double *rollout_log_prob; /* as reported by the rollout engine */
    const double *ref_log_prob;     /* under the reference model */
    const double *teacher_log_prob;
    const double *entropy;
    const double *value;     /* from the critic being trained */
    const double *old_value; /* from the critic at the start of the step */
    const double *advantage;
    const double *returns;
    const double *kl;              /* penalty against the reference model, part of the
                                      rewards */
    const double *opd_reverse_kl;  /* student against teacher */
    const int64_t *weight_version; /* of the weights that sampled each token */
    const uint8_t *chosen;    /* 1: a token of the step that clip_cov_loss or kl_cov_loss
                              treats in another way */
    const double *preference; /* private to the host */
    /* Where tokens were drawn from a part of the vocabulary (top-p, top-k, min-p), log_prob,
     * old_log_prob and rollout_log_prob are normalised over that part, and these over the whole
     * vocabulary, as those of reference and teacher are.  NULL: there is no difference; the
     * second is NULL also where nothing needs it. */
    const double *full_log_prob, *old_full_log_prob;
} miles_sample;

typedef struct miles_batch {
    size_t size;
    int64_t n;
    const miles_sample *const *sample; /* [n] */
} miles_batch;

typedef enum miles_kl { MILES_K1, MILES_K2, MILES_K3, MILES_LOW_VAR_KL } miles_kl;
typedef enum miles_level { MILES_TOKEN, MILES_SEQUENCE, MILES_GEOMETRIC } miles_level;
typedef enum miles_bound { MILES_TRUNCATE, MILES_CLIP, MILES_MASK } miles_bound;

/* Hyperparameters from the command line; fields have the names of the flags.  An unset
 * number is NaN where the comment says so. */
typedef struct miles_algo {
    size_t size;
    double gamma, lambd, kl_coef;
    double eps_clip, eps_clip_high;
    double eps_clip_c; /* NaN: no dual clip */
    double value_clip;
    double entropy_coef, kl_loss_coef;
    double opsm_delta;
    double tis_clip, tis_clip_low;
    double tis_upper_bound;
    double tis_lower_bound;                /* NaN: 1 / tis_upper_bound */
    double rs_lower_bound, rs_upper_bound; /* NaN: the TIS bounds */
    double rs_veto_threshold;              /* NaN: no veto */
    double drgrpo_divisor;
    int32_t kl_loss_type;        /* miles_kl */
    int32_t tis_level, rs_level; /* miles_level */
    int32_t tis_mode;            /* miles_bound */
    bool sequence_ratio;         /* one ratio per sample, as in GSPO */
    bool use_kl_loss;            /* report the KL loss and add it, times kl_loss_coef */
    bool use_unbiased_kl;        /* weight the estimate by the ratio of new to old policy */
    bool use_entropy;            /* entropy is available and reported */
    bool use_rollout_logprobs;   /* use the engine's log-probs as the old ones */
    bool calculate_per_token_loss;
    bool use_opsm;
    bool use_correction; /* a correction runs */
    bool use_tis;        /* the loss uses the correction's weights */
    bool use_rs, tis_batch_normalize;
    bool has_rollout_logprobs, has_opd_reverse_kl; /* the samples have these arrays */
    double sapo_temperature_pos, sapo_temperature_neg;
    double vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg;
    double clip_cov_ratio, clip_cov_lb, clip_cov_ub;
    double kl_cov_ratio, kl_cov_coef;
    int64_t pass_at_k;
} miles_algo;

/* ---- outputs ---- */

/* An extension that fails returns 1 and writes a message here: the cause and the remedy. */
typedef struct miles_error {
    char text[480];
} miles_error;

/* A metric is one number per sample.  Its value over a step is the sum of number /
 * divisor over the samples, divided by the step's denominator.  The mean selects the
 * divisor: */
typedef enum miles_mean {
    MILES_MEAN_SAMPLE, /* the sample's divisor: the number is a sum over its trained
                          tokens */
    MILES_MEAN_POLICY, /* the policy reducer's divisor */
    MILES_MEAN_NONE,   /* 1: the number is used as it is */
} miles_mean;

typedef struct miles_metric {
    const char *name;
    miles_mean mean;
} miles_metric;

#define MILES_METRIC_MAX 40

/* ---- extensions ---- */

typedef enum miles_kind {
    MILES_ADVANTAGE = 1,
    MILES_CORRECTION,
    MILES_REDUCER,
    MILES_LOSS,
    MILES_REWARD,
    MILES_GENERATE,
    MILES_GROUP_REWARD,
    MILES_REWARD_POST,
    MILES_GROUP_FILTER,
    MILES_SAMPLE_FILTER,
    MILES_SAMPLES_HOOK,
    MILES_BUFFER_FILTER,
    MILES_SOURCE,
    MILES_METRICS,
    MILES_HOOK,
    MILES_ROLLOUT,
    MILES_EVAL,
    MILES_BUFFER,
    MILES_PROMPTS
} miles_kind;

/* The first member of every extension. */
typedef struct miles_extension {
    size_t size; /* of the whole extension struct */
    int32_t kind;
    const char *name;
    const char *alias; /* a second name, or NULL */
    const char *help;  /* one line */
} miles_extension;

/* What an advantage estimator needs before and after it. */
enum {
    MILES_CENTRE_REWARDS = 1, /* subtract the group's mean reward */
    MILES_SCALE_REWARDS = 2,  /* and divide by the group's standard deviation */
    MILES_WHITEN = 4,         /* no effect without --normalize-advantages */
    MILES_NEEDS_VALUES = 8,
    MILES_SEQUENCE_RATIO = 16,         /* the policy loss uses one ratio per sample */
    MILES_RETURNS_ARE_ADVANTAGES = 32, /* returns are the advantages before whitening */
    MILES_USES_KL = 64, /* the KL penalty against the reference, if kl_coef is not 0 */
};

/* Computes advantage[i][t] and returns[i][t] for every sample of a rollout. */
typedef struct miles_advantage {
    miles_extension base;
    uint32_t needs;
    int (*run)(const miles_batch *batch, const miles_algo *algo, double *const *advantage,
               double *const *returns, miles_error *err);
} miles_advantage;

/* Off-policy correction (TIS, rejection sampling).  Runs once over the samples of an
 * optimizer step, before any of them is trained.  On entry weight[i][t] is 1 and
 * kept[i][t] is the mask.  metric[i * n_metric + k] is metric k of sample i; the divisor
 * is that of MILES_MEAN_SAMPLE. */
typedef struct miles_correction {
    miles_extension base;
    int32_t (*metrics)(const miles_algo *algo, miles_metric *out);
    int (*run)(const miles_batch *batch, const miles_algo *algo, double *const *weight,
               uint8_t *const *kept, double *metric, miles_error *err);
} miles_correction;

/* divisor[i] divides the policy terms of sample i, before the sum over samples is divided
 * by `denominator`, the step's denominator. */
typedef struct miles_reducer {
    miles_extension base;
    int (*run)(const miles_batch *batch, const miles_algo *algo, double denominator,
               double *divisor, miles_error *err);
} miles_reducer;

/* Loss and derivatives of one sample.  `policy` and `other` are sums over its kept
 * tokens; the loss is policy / policy divisor + other / sample divisor.  The derivatives,
 * zero on entry, are those of
 *     policy_scale * policy + other_scale * other. */
typedef struct miles_loss_out {
    size_t size;
    double policy_scale, other_scale; /* inputs */
    double policy, other;
    double *d_log_prob, *d_entropy, *d_value; /* [n] */
    double *metric;                           /* [n_metric] */
    double *d_full_log_prob;                  /* [n]; NULL: full_log_prob is NULL */
} miles_loss_out;

typedef struct miles_loss {
    miles_extension base;
    int32_t (*metrics)(const miles_algo *algo, miles_metric *out);
    int (*run)(const miles_sample *sample, const miles_algo *algo, miles_loss_out *out,
               miles_error *err);
} miles_loss;

/* One finished response, to be graded.  Texts have a length and may contain any bytes.
 * `response` excludes the end token or stop token that finished it. */
typedef struct miles_reward_in {
    size_t size;
    int64_t index;                                    /* of the sample, within the run */
    int64_t seed;                                     /* of the run */
    const char *prompt, *response, *label, *metadata; /* label, metadata: JSON, or NULL */
    size_t prompt_len, response_len, label_len, metadata_len;
    const int64_t *token; /* [n_token] prompt and response */
    int64_t n_token;
    bool boxed;               /* the response is the content of a \boxed{} */
    const char *raw_response; /* with the token that finished it, as Miles passes it */
    size_t raw_response_len;
    int64_t group;         /* shared by the responses to one prompt */
    int64_t n_response;    /* the last tokens are the response */
    int32_t status;        /* miles_status */
    const uint8_t *mask;   /* [n_response] 1: trained on; NULL: all are */
    const float *log_prob; /* [n_response] when sampled; NULL: not known */
    const char *messages;  /* of the prompt, a JSON list; NULL: it is text */
    size_t messages_len;
} miles_reward_in;

/* NaN and infinity are not valid rewards: such a sample is counted as invalid. */
typedef struct miles_reward_out {
    size_t size;
    double reward;
    char detail[2000]; /* a JSON object that dumps show as the reward; "": none */
} miles_reward_out;

/* Reward function.  Called from several threads at once.  If it returns 1, the sample has
 * no reward: it is counted as invalid, never as 0. */
typedef struct miles_reward {
    miles_extension base;
    int (*run)(const miles_reward_in *in, miles_reward_out *out, miles_error *err);
} miles_reward;

/* Grades the responses to one prompt together (--group-rm); out[i] is the reward of
 * in[i].  Called from several threads at once. */
typedef struct miles_group_reward {
    miles_extension base;
    int (*run)(const miles_reward_in *const *in, int64_t n, miles_reward_out *const *out,
               miles_error *err);
} miles_group_reward;

/* A tool call in an answer; arguments is JSON, as the model wrote it. */
typedef struct miles_call {
    const char *name, *arguments;
    size_t name_len, arguments_len;
} miles_call;

/* A conversation after a turn of the model. */
typedef struct miles_turn_in {
    size_t size;
    int64_t index; /* of the sample, within the run */
    int64_t seed;  /* of the run */
    int32_t turn;  /* turns of the model so far, including this one */
    int32_t max_turn;
    const char *prompt;
    const char *response; /* everything after the prompt: the model's turns and the
                             replies to them */
    const char *answer;   /* this turn only, without the token that finished it */
    const char *label, *metadata;
    size_t prompt_len, response_len, answer_len, label_len, metadata_len;
    const miles_call *call; /* [n_call] tool calls in the answer, if
                               --generate-tool-call-parser is set */
    int64_t n_call;
} miles_turn_in;

/* The next messages of the conversation.  No message: the conversation is finished. */
typedef struct miles_turn_out {
    size_t size;
    void *ctx; /* private to the host */
    /* Appends a message; may be called several times.  role is "tool", "user" or another
     * role of the chat template; NULL: the text is appended as it is, without the
     * template.  The text is copied. */
    void (*append_message)(struct miles_turn_out *out, const char *role, const char *text,
                           size_t len);
    double reward; /* NaN on entry; a number set when the conversation finishes is the
                      sample's reward */
} miles_turn_out;

/* The roles that an extension uses, so that the chat template is checked before the run
 * starts. */
enum { MILES_ROLE_TOOL = 1, MILES_ROLE_USER = 2 };

/* Environment for multi-turn rollouts: replies to the model's turns.  It must depend on
 * its input alone, so that a resumed run continues identically.  Called from several
 * threads at once.  If it returns 1, the sample has no reward. */
typedef struct miles_generate {
    miles_extension base;
    uint32_t roles; /* MILES_ROLE_TOOL | MILES_ROLE_USER */
    int (*run)(const miles_turn_in *in, miles_turn_out *out, miles_error *err);
} miles_generate;

/* ---- extensions that see complete samples ---- */

typedef enum miles_status {
    MILES_PENDING,
    MILES_COMPLETED,
    MILES_TRUNCATED,
    MILES_ABORTED,
    MILES_FAILED
} miles_status;

/* A complete sample: prompt, response and everything known about them. */
typedef struct miles_answer {
    size_t size;
    int64_t index, group; /* unique within the run; the answers to one prompt share the
                             group */
    int64_t row;          /* row of the prompt data; -1: none */
    int32_t status;       /* miles_status */
    int32_t n_turn;
    bool has_reward;
    double reward;                                    /* 0 if has_reward is false */
    const char *prompt, *response, *label, *metadata; /* as in miles_reward_in */
    size_t prompt_len, response_len, label_len, metadata_len;
    const int32_t *token; /* [n_token] prompt and response */
    int64_t n_token, n_response;
    const uint8_t *mask;     /* [n_response] 1: trained on; NULL: all are */
    const float *log_prob;   /* [n_response] when sampled; NULL: not known */
    const uint64_t *version; /* [n_response] weight version; NULL: not known */
} miles_answer;

/* The answers of a rollout, a group or an evaluation, group after group. */
typedef struct miles_answers {
    size_t size;
    int64_t rollout; /* from 0; -1: before the first rollout, or not known */
    int64_t n;
    const miles_answer *const *answer; /* [n] */
} miles_answers;

/* Transforms the rewards of a rollout, instead of the normalisation within groups.  On
 * entry shaped[i] is the reward of answer i. */
typedef struct miles_reward_post {
    miles_extension base;
    int (*run)(const miles_answers *rollout, double *shaped, miles_error *err);
} miles_reward_post;

/* Decides whether a group is trained on.  *keep is true on entry.  A dropped group is
 * counted under `reason`, unless that is "". */
typedef struct miles_group_filter {
    miles_extension base;
    int (*run)(const miles_answers *group, bool *keep, char reason[40], miles_error *err);
} miles_group_filter;

/* Excludes answers of a rollout from training; they still take part in the normalisation
 * of rewards.  remove[i] is 0 on entry. */
typedef struct miles_sample_filter {
    miles_extension base;
    int (*run)(const miles_answers *rollout, uint8_t *remove, miles_error *err);
} miles_sample_filter;

/* Receives all answers that finished in a rollout, including those of dropped groups. */
typedef struct miles_samples_hook {
    miles_extension base;
    int (*run)(const miles_answers *all, const uint8_t *kept, miles_error *err);
} miles_samples_hook;

/* Selects which of the unfinished groups of earlier rollouts are continued now: at most
 * n_want of the group numbers 0 .. n_group - 1, in selected.  *n_selected is 0 on entry.  The
 * other groups stay in the buffer. */
typedef struct miles_buffer_filter {
    miles_extension base;
    int (*run)(const miles_answers *partial, int64_t n_group, int64_t n_want,
               int64_t *selected, int64_t *n_selected, miles_error *err);
} miles_buffer_filter;

/* Selects the row of the prompt data for a group.  A function of the group's number, so
 * that a resumed run continues with the same prompts.  The result is taken modulo n_row. */
typedef struct miles_source {
    miles_extension base;
    int64_t (*select)(int64_t group, int64_t n_row, int64_t seed);
} miles_source;

/* Receives a generated prompt. */
typedef struct miles_prompt_out {
    size_t size;
    void *ctx; /* private to the host */
    /* Takes a JSON object with the fields of a row of prompt data.  Call it once; the
     * text is copied. */
    void (*emit)(struct miles_prompt_out *out, const char *json, size_t len);
} miles_prompt_out;

/* Generates prompts when there is no prompt data.  A function of the group's number, so
 * that a resumed run continues with the same prompts. */
typedef struct miles_prompts {
    miles_extension base;
    int (*make)(int64_t group, int64_t seed, miles_prompt_out *out, miles_error *err);
} miles_prompts;

/* Decision about a finished group that waits for training. */
typedef enum miles_decision {
    MILES_KEEP_WAITING,
    MILES_TRAIN, /* in the rollout batch being assembled */
    MILES_DROP   /* dropped or generated again: --async-unused-samples-handler */
} miles_decision;

/* Finished groups under --fully-async, oldest first. */
typedef struct miles_waiting {
    size_t size;
    const miles_answers *answers; /* of all groups, group after group */
    int64_t n_group;
    const int64_t
        *staleness; /* [n_group] weight publications since the group's oldest token */
    int64_t n_want; /* groups that the rollout batch still needs */
} miles_waiting;

/* Selects the waiting groups of a rollout batch, instead of the oldest that are not too
 * stale.  Called whenever a group arrives.  decision [n_group] is MILES_KEEP_WAITING on
 * entry; at most n_want entries may become MILES_TRAIN. */
typedef struct miles_buffer {
    miles_extension base;
    int (*run)(const miles_waiting *waiting, int32_t *decision, miles_error *err);
} miles_buffer;

/* Receives an extension's metrics. */
typedef struct miles_metrics_out {
    size_t size;
    void *ctx; /* private to the host */
    /* The name is copied: "rollout/short_answers". */
    void (*add)(struct miles_metrics_out *out, const char *name, double value);
} miles_metrics_out;

/* Additional metrics of a rollout or of an evaluation set; `set` is the set's name. */
typedef struct miles_metrics {
    miles_extension base;
    int (*run)(const miles_answers *answers, const char *set, miles_metrics_out *out,
               miles_error *err);
} miles_metrics;

/* Functions for a custom rollout.  A function that fails returns 1 with the message in
 * err. */
typedef struct miles_rollout_host {
    size_t size;
    void *ctx;       /* private to the host */
    int64_t rollout; /* from 0 */
    int64_t n_want;  /* groups that a rollout batch should have */
    int64_t seed;    /* of the run */
    /* Generates and grades answers to the next n_group prompts, and blocks until they are
     * finished.  The answers are ordered by group and valid until the extension returns. */
    int (*generate)(struct miles_rollout_host *host, int64_t n_group,
                    const miles_answers **out, miles_error *err);
    /* Adds the group with this number to the rollout batch; each of its answers has a
     * reward. */
    int (*keep_group)(struct miles_rollout_host *host, int64_t group, miles_error *err);
    /* Adds a metric of the rollout; the name is copied. */
    void (*add_metric)(struct miles_rollout_host *host, const char *name, double value);
} miles_rollout_host;

/* A custom rollout: decides how many prompts are generated and which groups are trained
 * on. */
typedef struct miles_rollout {
    miles_extension base;
    int (*run)(miles_rollout_host *host, miles_error *err);
} miles_rollout;

/* Functions for a custom evaluation.  A function that fails returns 1 with the message in
 * err. */
typedef struct miles_eval_host {
    size_t size;
    void *ctx;              /* private to the host */
    const char *const *set; /* [n_set] names of the evaluation sets */
    int64_t n_set;
    /* Generates and grades answers to all prompts of a set, with the set's settings, and
     * blocks until they are finished.  The answers are valid until the extension
     * returns. */
    int (*generate)(struct miles_eval_host *host, int64_t set, const miles_answers **out,
                    miles_error *err);
    /* Adds a metric of the evaluation; the name is copied. */
    void (*add_metric)(struct miles_eval_host *host, const char *name, double value);
    int64_t rollout; /* after which it is evaluated; -1: before the first, or not known */
} miles_eval_host;

/* A custom evaluation: decides which sets are generated and which metrics are reported. */
typedef struct miles_eval {
    miles_extension base;
    int (*run)(miles_eval_host *host, miles_error *err);
} miles_eval;

typedef enum miles_when {
    MILES_AFTER_INIT,
    MILES_BEFORE_LOG_PROB, /* a forward pass for log-probs only */
    MILES_BEFORE_TRAIN_STEP,
    MILES_AFTER_SAVE,
    MILES_DATA_READY,     /* all arrays of a rollout are filled; training has not started */
    MILES_WEIGHTS_WRITTEN /* for engines in other processes, which have not loaded them
                             yet */
} miles_when;

/* What a hook may change before a train step.  Numbers are those of the flags on entry and
 * hold for this step.  With several ranks, rank 0 calls the hook, and all get its changes. */
typedef struct miles_step {
    size_t size;
    double lr, weight_decay;
    double clip_grad; /* limit of the norm of all gradients; 0: none */
    void *ctx;        /* private to the host */
    /* Multiplies the gradients of all parameters whose names match the shell pattern by
     * scale (0: masked), and then limits their norm, of all of them together, to max_norm
     * (0: no limit).  clip_grad applies afterwards. */
    void (*change_grads)(struct miles_step *step, const char *pattern, double scale,
                         double max_norm);
    /* Adds a metric of the step, train/NAME; the name is copied. */
    void (*add_metric)(struct miles_step *step, const char *name, double value);
    /* NULL on entry: a further loss of each sample of the step, as miles_loss.run; it has no
     * metrics.  Not with several ranks. */
    int (*loss)(const miles_sample *sample, const miles_algo *algo, miles_loss_out *out,
                miles_error *err);
} miles_step;

typedef struct miles_event {
    size_t size;
    int32_t when;             /* miles_when */
    int64_t rollout;          /* number of the rollout */
    int64_t step;             /* within the rollout, from 0; otherwise -1 */
    const char *what;         /* BEFORE_LOG_PROB: the model, "ref", "teacher" or "actor";
                                 AFTER_SAVE and WEIGHTS_WRITTEN: the directory, a Hugging
                                 Face checkpoint; otherwise "" */
    const miles_batch *batch; /* DATA_READY: the samples of the rollout; otherwise NULL */
    miles_step *control;      /* BEFORE_TRAIN_STEP; otherwise NULL */
} miles_event;

typedef struct miles_hook {
    miles_extension base;
    int (*run)(const miles_event *event, miles_error *err);
} miles_hook;

typedef struct miles_plugin {
    size_t size;
    uint32_t abi_version;                     /* MILES_ABI_VERSION */
    const miles_extension *const *extensions; /* [], NULL-terminated */
} miles_plugin;

typedef const miles_plugin *miles_plugin_fn(void);

#ifdef __cplusplus
}
#endif

#endif
