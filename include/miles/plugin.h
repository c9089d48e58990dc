/* miles/plugin.h - what an algorithm of one's own looks like.
 *
 * An edge of the training loop is a row: a name and a function over plain numbers and
 * texts.  miles_kind lists what there is: from which prompt comes next, over what is said
 * between two turns of the model and what an answer is worth, to the loss.  The built-in
 * rows use this header alone, or next to nothing else.
 *
 * A shared object exports one function,
 *
 *     const miles_plugin *miles_plugin_entry(void);
 *
 * and its rows are named on the command line as "./my.so:name" wherever a built-in name
 * would stand.  Nothing of miles is linked into it.
 *
 * Numbers are f64.  The host owns every array: inputs may be read during the call only,
 * outputs are sized by the host and filled by the row.  A row must give the same bits
 * for the same inputs; it is called from one thread at a time and keeps no state.
 *
 * The header only grows: every struct begins with its own size, and no field beyond that
 * size may be touched.  Structs that may grow travel as pointers. */
#ifndef MILES_PLUGIN_H
#define MILES_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MILES_ABI 1

/* ---- what goes in ---- */

/* One response.  Arrays have n entries, one per response token; NULL where the run does
 * not have them.  What stands at a token that is masked out must not influence anything. */
typedef struct miles_sample {
    size_t size;
    int64_t n;
    int64_t group;   /* samples of one prompt share it */
    int64_t rollout; /* pieces of one conversation share it; most rollouts are one sample */
    double reward;   /* after normalisation inside the group */

    const uint8_t *mask;  /* 1: trained */
    const uint8_t *kept;  /* mask, less what the correction rejects */
    const double *weight; /* the correction's factor; NULL: 1 */

    const double *log_prob;         /* of the weights being trained */
    const double *old_log_prob;     /* of the weights at the start of the step */
    const double *rollout_log_prob; /* as the engine reported it */
    const double *ref_log_prob;     /* of the reference model */
    const double *teacher_log_prob;
    const double *entropy;
    const double *value;     /* of the critic being trained */
    const double *old_value; /* of the critic at the start of the step */
    const double *advantage;
    const double *returns;
    const double *kl;              /* penalty against the reference, for rewards */
    const double *opd_reverse_kl;  /* student against teacher */
    const int64_t *weight_version; /* that each token was drawn with */
} miles_sample;

typedef struct miles_batch {
    size_t size;
    int64_t n;
    const miles_sample *const *sample; /* [n] */
} miles_batch;

typedef enum miles_kl { MILES_K1, MILES_K2, MILES_K3, MILES_LOW_VAR_KL } miles_kl;
typedef enum miles_level { MILES_TOKEN, MILES_SEQUENCE, MILES_GEOMETRIC } miles_level;
typedef enum miles_bound { MILES_TRUNCATE, MILES_CLIP, MILES_MASK } miles_bound;

/* The numbers of the command line; names are those of the flags.  A number that was not
 * given is NaN where the comment says so. */
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
    double rs_lower_bound, rs_upper_bound; /* NaN: those of tis */
    double rs_veto_threshold;              /* NaN: no veto */
    double drgrpo_divisor;
    int32_t kl_loss_type;        /* miles_kl */
    int32_t tis_level, rs_level; /* miles_level */
    int32_t tis_mode;            /* miles_bound */
    bool sequence_ratio;         /* one ratio per sample, as GSPO has it */
    bool use_kl_loss;            /* report it, and add it by kl_loss_coef */
    bool use_unbiased_kl;        /* weight the estimate by the ratio of new and old */
    bool use_entropy;            /* entropy is there and reported */
    bool use_rollout_logprobs;   /* the engine's log-probs stand for the old ones */
    bool calculate_per_token_loss;
    bool use_opsm;
    bool use_correction; /* a correction runs */
    bool use_tis;        /* and its weights count */
    bool use_rs, tis_batch_normalize;
    bool has_rollout_logprobs, has_opd_reverse_kl; /* the samples have these columns */
} miles_algo;

/* ---- what comes out ---- */

/* A row that cannot go on returns 1 and leaves a sentence: what is wrong, what to do. */
typedef struct miles_error {
    char text[480];
} miles_error;

/* A metric is a number per sample; over a step it becomes the sum of number / divisor,
 * divided by the step's denominator.  Which divisor: */
typedef enum miles_mean {
    MILES_MEAN_SAMPLE, /* the sample's own: the number is a sum over its trained tokens */
    MILES_MEAN_POLICY, /* the policy reducer's */
    MILES_MEAN_NONE,   /* 1: the number is finished */
} miles_mean;

typedef struct miles_metric {
    const char *name;
    miles_mean mean;
} miles_metric;

#define MILES_METRIC_MAX 40

/* ---- rows ---- */

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

/* Every row begins with this. */
typedef struct miles_extension {
    size_t size; /* of the whole row */
    int32_t kind;
    const char *name;
    const char *alias; /* a second name, or NULL */
    const char *help;  /* one line */
} miles_extension;

/* What an estimator wants done around it. */
enum {
    MILES_CENTRE_REWARDS = 1, /* subtract the mean of the group */
    MILES_SCALE_REWARDS = 2,  /* and divide by its standard deviation */
    MILES_WHITEN = 4,         /* means nothing without --normalize-advantages */
    MILES_NEEDS_VALUES = 8,
    MILES_SEQUENCE_RATIO = 16, /* the policy loss uses one ratio per sample */
    MILES_RETURNS_FOLLOW = 32, /* returns are the advantages before whitening */
    MILES_USES_KL = 64, /* the penalty against the reference, where kl_coef is not 0 */
};

/* Fills advantage[i][t] and returns[i][t] of every sample of a rollout. */
typedef struct miles_advantage {
    miles_extension row;
    uint32_t wants;
    int (*run)(const miles_batch *batch, const miles_algo *algo, double *const *advantage,
               double *const *returns, miles_error *err);
} miles_advantage;

/* Runs once over the samples of an optimizer step, before any of them is trained.
 * weight[i][t] comes as 1, kept[i][t] as the mask.  metric[i * n_metric + k] is the
 * number of metric k for sample i; they are divided as MILES_MEAN_SAMPLE says. */
typedef struct miles_correction {
    miles_extension row;
    int32_t (*metrics)(const miles_algo *algo, miles_metric *out);
    int (*run)(const miles_batch *batch, const miles_algo *algo, double *const *weight,
               uint8_t *const *kept, double *metric, miles_error *err);
} miles_correction;

/* divisor[i] is what the policy terms of sample i are divided by, before the sum over
 * samples is divided by `denominator`, the step's. */
typedef struct miles_reducer {
    miles_extension row;
    int (*run)(const miles_batch *batch, const miles_algo *algo, double denominator,
               double *divisor, miles_error *err);
} miles_reducer;

/* What a loss says about one sample.  `policy` and `other` are sums over its kept tokens;
 * they become policy / policy divisor + other / sample divisor.  The derivatives, zero
 * when the call begins, are those of
 *     policy_scale * policy + other_scale * other. */
typedef struct miles_loss_out {
    size_t size;
    double policy_scale, other_scale; /* given */
    double policy, other;
    double *d_log_prob, *d_entropy, *d_value; /* [n] */
    double *metric;                           /* [n_metric] */
} miles_loss_out;

typedef struct miles_loss {
    miles_extension row;
    int32_t (*metrics)(const miles_algo *algo, miles_metric *out);
    int (*run)(const miles_sample *sample, const miles_algo *algo, miles_loss_out *out,
               miles_error *err);
} miles_loss;

/* One finished response, to be scored.  Text has a length and may hold any bytes.  The response
 * is the answer without the end token or stop token that ended it. */
typedef struct miles_reward_in {
    size_t size;
    int64_t index;                                    /* of the sample, in the run */
    int64_t seed;                                     /* of the run */
    const char *prompt, *response, *label, *metadata; /* label, metadata: JSON, or NULL */
    size_t prompt_len, response_len, label_len, metadata_len;
    const int64_t *token; /* [n_token] prompt and response */
    int64_t n_token;
    bool boxed;               /* the response is what stood in a box */
    const char *raw_response; /* with the token that ended it, as Miles passes it on */
    size_t raw_response_len;
} miles_reward_in;

/* NaN and infinity are no rewards: such a sample is counted as invalid. */
typedef struct miles_reward_out {
    size_t size;
    double reward;
    char detail[2000]; /* a JSON object that stands for the reward in dumps; "": none */
} miles_reward_out;

/* Rows of this kind are called from several threads at once.  One that returns 1 leaves
 * the sample without a reward: it is counted as invalid, never as 0. */
typedef struct miles_reward {
    miles_extension row;
    int (*run)(const miles_reward_in *in, miles_reward_out *out, miles_error *err);
} miles_reward;

/* Scores the answers to one prompt together, under --group-rm; out[i] is in[i]'s. */
typedef struct miles_group_reward {
    miles_extension row;
    int (*run)(const miles_reward_in *const *in, int64_t n, miles_reward_out *const *out,
               miles_error *err);
} miles_group_reward;

/* A call of a tool in an answer; arguments is JSON, as the model wrote it. */
typedef struct miles_call {
    const char *name, *arguments;
    size_t name_len, arguments_len;
} miles_call;

/* A conversation at the end of a turn of the model. */
typedef struct miles_turn_in {
    size_t size;
    int64_t index; /* of the sample, in the run */
    int64_t seed;  /* of the run */
    int32_t turn;  /* the model's turns so far, this one included */
    int32_t max_turn;
    const char *prompt;
    const char *response; /* all that was said since, by the model and to it */
    const char *answer;   /* this turn alone, without the token that ended it */
    const char *label, *metadata;
    size_t prompt_len, response_len, answer_len, label_len, metadata_len;
    const miles_call *call; /* [n_call] in the answer, where --generate-tool-call-parser
                               reads them */
    int64_t n_call;
} miles_turn_in;

/* What is said next.  Nothing: the conversation is over. */
typedef struct miles_turn_out {
    size_t size;
    void *to; /* the host's */
    /* Says a message; may be called several times.  role "tool", "user" or what else the chat
     * template knows; NULL: the text stands in the conversation as it is, without the
     * template.  The text is copied. */
    void (*say)(struct miles_turn_out *out, const char *role, const char *text, size_t len);
    double reward; /* NaN; a number here, at the end, is the sample's reward */
} miles_turn_out;

/* Which roles a row speaks in, so that the chat template is tried before a run starts. */
enum { MILES_SAYS_TOOL = 1, MILES_SAYS_USER = 2 };

/* An environment: answers the model's turns.  All it knows of a conversation is what it is
 * given, so that a run that was stopped goes on as it would have.  Called from several
 * threads at once.  One that returns 1 leaves the sample without a reward. */
typedef struct miles_generate {
    miles_extension row;
    uint32_t wants;
    int (*run)(const miles_turn_in *in, miles_turn_out *out, miles_error *err);
} miles_generate;

/* ---- rows that see whole answers ---- */

typedef enum miles_status {
    MILES_PENDING,
    MILES_COMPLETED,
    MILES_TRUNCATED,
    MILES_ABORTED,
    MILES_FAILED
} miles_status;

/* An answer with all that is known of it. */
typedef struct miles_answer {
    size_t size;
    int64_t index, group; /* numbers that go on over the run; a prompt's answers share the
                             second */
    int64_t row;          /* of the prompt data; -1: none */
    int32_t status;       /* miles_status */
    int32_t n_turn;
    bool has_reward;
    double reward;                                    /* 0 where there is none */
    const char *prompt, *response, *label, *metadata; /* as in miles_reward_in */
    size_t prompt_len, response_len, label_len, metadata_len;
    const int32_t *token; /* [n_token] prompt and response */
    int64_t n_token, n_response;
    const uint8_t *mask;     /* [n_response] 1: trained; NULL: all are */
    const float *log_prob;   /* [n_response] as drawn; NULL: not known */
    const uint64_t *version; /* [n_response] of the weights; NULL: not known */
} miles_answer;

/* Answers of a round, a group or an evaluation, groups one after the other. */
typedef struct miles_answers {
    size_t size;
    int64_t rollout; /* the round, from 0; -1: before the first, or not known */
    int64_t n;
    const miles_answer *const *answer; /* [n] */
} miles_answers;

/* How the rewards of a round become what is learned from, in place of normalisation inside
 * groups: shaped[i] comes as the reward. */
typedef struct miles_reward_post {
    miles_extension row;
    int (*run)(const miles_answers *round, double *shaped, miles_error *err);
} miles_reward_post;

/* Is a group worth training on?  It comes as kept; one that is not is counted under the reason,
 * unless that is "". */
typedef struct miles_group_filter {
    miles_extension row;
    int (*run)(const miles_answers *group, bool *keep, char reason[40], miles_error *err);
} miles_group_filter;

/* Which answers of a round are not trained, though they count when rewards are normalised:
 * remove[i], 0 when the call begins. */
typedef struct miles_sample_filter {
    miles_extension row;
    int (*run)(const miles_answers *round, uint8_t *remove, miles_error *err);
} miles_sample_filter;

/* Sees all answers that ended in a round, those of dropped groups too. */
typedef struct miles_samples_hook {
    miles_extension row;
    int (*run)(const miles_answers *all, const uint8_t *kept, miles_error *err);
} miles_samples_hook;

/* Which of the unfinished groups that earlier rounds left go on now: at most `want` of the
 * n_group numbers, from 0, in pick; *n_pick comes as 0.  The others stay. */
typedef struct miles_buffer_filter {
    miles_extension row;
    int (*run)(const miles_answers *held, int64_t n_group, int64_t want, int64_t *pick,
               int64_t *n_pick, miles_error *err);
} miles_buffer_filter;

/* Which row of the prompt data the group gets: a function of the group's number, so that a
 * resumed run goes on with the same prompts.  Taken modulo n_row. */
typedef struct miles_source {
    miles_extension row;
    int64_t (*pick)(int64_t group, int64_t n_row, int64_t seed);
} miles_source;

/* Where a row puts a prompt that it made. */
typedef struct miles_prompt_out {
    size_t size;
    void *to; /* the host's */
    /* A JSON object with the fields of a row of prompt data, once; it is copied. */
    void (*give)(struct miles_prompt_out *out, const char *row, size_t len);
} miles_prompt_out;

/* Makes prompts where there is no prompt data: a function of the group's number, so that a
 * resumed run goes on with the same prompts. */
typedef struct miles_prompts {
    miles_extension row;
    int (*make)(int64_t group, int64_t seed, miles_prompt_out *out, miles_error *err);
} miles_prompts;

/* What becomes of a group that waits to be trained on. */
typedef enum miles_decision {
    MILES_KEEP_WAITING,
    MILES_TRAIN, /* in the round that is being put together */
    MILES_DROP   /* is dropped, or asked again: --async-unused-samples-handler */
} miles_decision;

/* Groups that have ended, under --fully-async, oldest first. */
typedef struct miles_waiting {
    size_t size;
    const miles_answers *answers; /* of all groups, one after the other */
    int64_t n_group;
    const int64_t *stale; /* [n_group] publications of weights since its oldest token */
    int64_t want;         /* groups that the round still needs */
} miles_waiting;

/* Which waiting groups a round gets, in place of the oldest that are not too stale.  Called
 * whenever a group has come; fate [n_group] is MILES_KEEP_WAITING when the call begins, and at most
 * `want` may become MILES_TRAIN. */
typedef struct miles_buffer {
    miles_extension row;
    int (*run)(const miles_waiting *waiting, int32_t *fate, miles_error *err);
} miles_buffer;

/* Where a row puts its numbers. */
typedef struct miles_metrics_out {
    size_t size;
    void *to; /* the host's */
    /* The name is copied: "rollout/short_answers". */
    void (*add)(struct miles_metrics_out *out, const char *name, double value);
} miles_metrics_out;

/* Further metrics of a round or of an evaluation, whose set has a name. */
typedef struct miles_metrics {
    miles_extension row;
    int (*run)(const miles_answers *answers, const char *set, miles_metrics_out *out,
               miles_error *err);
} miles_metrics;

/* What a rollout works with.  Functions that fail return 1, and err has the sentence. */
typedef struct miles_rollout_host {
    size_t size;
    void *of;        /* the host's */
    int64_t rollout; /* the round, from 0 */
    int64_t n_want;  /* groups that a round should have */
    int64_t seed;    /* of the run */
    /* Has the next n_group prompts answered and graded, and waits.  Answers come group after
     * group and stay until the row returns. */
    int (*ask)(struct miles_rollout_host *host, int64_t n_group, const miles_answers **out,
               miles_error *err);
    /* Puts the group of this number into the round; each of its answers has a reward. */
    int (*keep)(struct miles_rollout_host *host, int64_t group, miles_error *err);
    /* Adds a metric of the round; the name is copied. */
    void (*add)(struct miles_rollout_host *host, const char *name, double value);
} miles_rollout_host;

/* Makes a whole round: what is asked, and what of it is trained on. */
typedef struct miles_rollout {
    miles_extension row;
    int (*run)(miles_rollout_host *host, miles_error *err);
} miles_rollout;

/* What an evaluation works with.  Functions that fail return 1, and err has the sentence. */
typedef struct miles_eval_host {
    size_t size;
    void *of;               /* the host's */
    const char *const *set; /* [n_set] names of the sets */
    int64_t n_set;
    /* Has all prompts of a set answered and graded, as its settings say, and waits.  Answers
     * stay until the row returns. */
    int (*ask)(struct miles_eval_host *host, int64_t set, const miles_answers **out,
               miles_error *err);
    /* Adds a metric of the evaluation; the name is copied. */
    void (*add)(struct miles_eval_host *host, const char *name, double value);
} miles_eval_host;

/* Makes a whole evaluation: which sets are asked, and what is said of the answers. */
typedef struct miles_eval {
    miles_extension row;
    int (*run)(miles_eval_host *host, miles_error *err);
} miles_eval;

typedef enum miles_when {
    MILES_AFTER_INIT,
    MILES_BEFORE_LOG_PROB, /* a pass that only scores */
    MILES_BEFORE_TRAIN_STEP,
    MILES_AFTER_SAVE,
    MILES_DATA_READY,     /* all columns of a round are there, and nothing is trained yet */
    MILES_WEIGHTS_WRITTEN /* for engines of other processes, which do not have them yet */
} miles_when;

typedef struct miles_event {
    size_t size;
    int32_t when;     /* miles_when */
    int64_t rollout;  /* the round */
    int64_t step;     /* of the round, from 0; else -1 */
    const char *what; /* BEFORE_LOG_PROB: whose, "ref", "teacher" or "actor"; AFTER_SAVE and
                         WEIGHTS_WRITTEN: the directory, a Hugging Face checkpoint; else "" */
    const miles_batch *batch; /* DATA_READY: the samples of the round; else NULL */
} miles_event;

typedef struct miles_hook {
    miles_extension row;
    int (*run)(const miles_event *event, miles_error *err);
} miles_hook;

typedef struct miles_plugin {
    size_t size;
    uint32_t abi;                      /* MILES_ABI */
    const miles_extension *const *row; /* NULL at the end */
} miles_plugin;

typedef const miles_plugin *miles_plugin_fn(void);

#ifdef __cplusplus
}
#endif

#endif
