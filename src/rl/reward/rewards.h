/* rewards.h - scores samples on a thread pool.
 *
 * The caller submits samples as they finish; a reward thread calls back with the result,
 * in any order, so that scoring overlaps with generation.  Each thread has its own worker
 * process or connection.  A Python function is called without a thread: thousands of calls
 * may be in flight.
 *
 * Every sample gets exactly one result.  The outcome indicates whether there is a reward:
 * a grader that hangs, crashes or returns an invalid answer never counts as 0.
 *
 * thread: submit, wait and counts from any thread; open and close from one. */
#ifndef ML_RL_REWARD_REWARDS_H
#define ML_RL_REWARD_REWARDS_H

#include "base/err.h"
#include "base/str.h"
#include "miles/plugin.h"
#include "rl/reward_parts.h"
#include "base/line_process.h"
#include "base/worker_pool.h"

typedef enum ml_reward_outcome {
    ML_REWARD_OK,
    ML_REWARD_TIMEOUT, /* no answer before the deadline */
    ML_REWARD_CRASH,   /* the worker died, or the server could not be reached */
    ML_REWARD_INVALID, /* not a finite number, or no answer for this sample */
    ML_REWARD_OUTCOMES
} ml_reward_outcome;

/* "ok", "timeout", "crash", "invalid". */
const char *ml_reward_outcome_name(ml_reward_outcome o);

/* A language model that grades, in this process or behind an OpenAI-compatible server
 * (llm_judge.h). */
typedef struct ml_llm_judge_opts {
    const char *model_path;        /* its checkpoint; NULL: it is at the server */
    struct ml_judge_model *engine; /* of model_path, once it is open (judge_model.h) */
    const char *device;            /* of the engine; NULL: the run's */
    int64_t context;               /* of the engine, in tokens */
    const char *url;               /* up to /v1; NULL: none */
    const char *model;             /* its name there */
    const char *key_file;          /* with the API key; NULL: none */
    const char *prompt_path;       /* template with {prompt}, {response} and {label} */
    const char *pattern;           /* regular expression: its last match is the score */
    double temperature;
    int64_t max_tokens;
} ml_llm_judge_opts;

typedef struct ml_reward_opts {
    const char *rm_type;        /* NULL: taken from each sample's metadata */
    ml_worker_command command;  /* of a worker process */
    ml_worker_pool_opts python; /* of workers that run a Python function; none: not used */
    ml_str args;             /* the flags of the run, a JSON object, for Python functions */
    const miles_reward *ext; /* from a shared object; NULL: none */
    const miles_group_reward *group_ext; /* the same, for groups */
    bool group;         /* command and group_row get the samples of a prompt together */
    const char *rm_url; /* for remote_rm */
    ml_llm_judge_opts judge;       /* for judge */
    const char *model_path;        /* for reward_model; NULL: none */
    struct ml_reward_model *model; /* of model_path, once it is open (reward_model.h) */
    const char *model_device;      /* NULL: the run's */
    ml_worker_pool_opts ifbench;   /* workers for ifbench; none: not offered */
    const char *reward_key;        /* member of an object; NULL: reward, then score */
    int64_t n_thread;              /* 0: 1 */
    int64_t n_retry;               /* retries of requests to rm_url */
    int64_t memory_bytes;          /* memory limit of a worker process; 0: none */
    double deadline_s;             /* per sample; 0: 30 */
    /* A weighted sum of these, instead of rm_type, command and extensions. */
    const struct ml_reward_part *part; /* [n_part] */
    int n_part;
    bool custom; /* a sample's metadata.rm_type does not override it */
    /* Set by ml_rewards_open, for all its threads. */
    ml_worker_pool *python_pool, *ifbench_pool;
} ml_reward_opts;

/* One reward of a sum. */
typedef struct ml_reward_part {
    const char *name; /* of its metric */
    double weight;
    ml_reward_opts opts;
} ml_reward_part;

typedef struct ml_reward_result {
    ml_reward_outcome outcome;
    double reward;    /* NaN unless ok */
    double ms;        /* duration */
    const char *json; /* the whole reward, a number or an object; "null" unless ok */
    const char *why;  /* a message unless ok */
    const ml_reward_value *part; /* [n_part] further numbers of an object */
    int n_part;
} ml_reward_result;

typedef struct ml_rewards ml_rewards;
/* Called on a reward thread; r and everything it points to are valid only during the
 * call. */
typedef void ml_reward_done(void *ud, const ml_reward_result *r);

/* Resolves names, so that a wrong one fails before the run starts.  Strings must outlive
 * it. */
ml_status ml_rewards_open(ml_rewards **out, const ml_reward_opts *opts, ml_err *err);
/* Scores everything that was submitted, then returns.  NULL is allowed. */
void ml_rewards_close(ml_rewards *r);

/* `in`, and everything it points to, must stay valid until done is called. */
void ml_rewards_submit(ml_rewards *r, const miles_reward_in *in, ml_reward_done *done,
                       void *ud);
/* The same for samples of one prompt.  A group reward gets them together, others one by
 * one. */
void ml_rewards_submit_group(ml_rewards *r, const miles_reward_in *const *in /* [n] */,
                             int64_t n, ml_reward_done *done, void *const *ud /* [n] */);
/* Waits until every submitted sample has its result. */
void ml_rewards_wait(ml_rewards *r);

/* Results so far, by outcome. */
void ml_rewards_counts(ml_rewards *r, int64_t counts[ML_REWARD_OUTCOMES]);

#endif
