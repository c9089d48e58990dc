/* rewards.h - scoring samples, on threads of its own.
 *
 * Samples are handed in as they are finished and results come back by a call on a reward
 * thread, in any order, so that scoring overlaps with generation.  Each thread has its
 * own worker process or connection.
 *
 * A sample always gets exactly one result.  Its outcome says whether there is a reward:
 * one that hangs, dies or answers nonsense is never taken for 0.
 *
 * thread: submit, wait and counts from any thread; open and close from one. */
#ifndef ML_RL_REWARD_REWARDS_H
#define ML_RL_REWARD_REWARDS_H

#include "base/err.h"
#include "base/str.h"
#include "miles/plugin.h"
#include "rl/reward/parts.h"
#include "base/line_process.h"

typedef enum ml_reward_outcome {
    ML_REWARD_OK,
    ML_REWARD_TIMEOUT, /* no answer before the deadline */
    ML_REWARD_CRASH,   /* the worker died, or the server could not be reached */
    ML_REWARD_INVALID, /* an answer that is no finite number, or none for this sample */
    ML_REWARD_OUTCOMES
} ml_reward_outcome;

/* "ok", "timeout", "crash", "invalid". */
const char *ml_reward_outcome_name(ml_reward_outcome o);

typedef struct ml_reward_opts {
    const char *rm_type;                 /* NULL: each sample's metadata says it */
    ml_worker_command command;           /* of a worker process */
    const miles_reward *row;             /* of a shared object; NULL: none */
    const miles_group_reward *group_row; /* the same, for groups */
    bool group; /* command and group_row are given the samples of a prompt together */
    const char *rm_url;                /* for remote_rm */
    ml_worker_command ifbench_command; /* a worker for ifbench; none: not offered */
    const char *reward_key; /* which number of an object; NULL: reward, then score */
    int64_t n_thread;       /* 0: 1 */
    int64_t n_retry;        /* of requests to rm_url */
    int64_t memory_bytes;   /* memory of a worker process; 0: no bound */
    double deadline_s;      /* for a sample; 0: 30 */
    /* A weighted sum of these, in place of rm_type, command and rows. */
    const struct ml_reward_part *part; /* [n_part] */
    int n_part;
    bool custom; /* a sample's metadata.rm_type does not go before it */
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
    double ms;        /* that it took */
    const char *json; /* the whole reward, a number or an object; "null" unless ok */
    const char *why;  /* a sentence unless ok */
    const ml_reward_value *part; /* [n_part] further numbers of an object */
    int n_part;
} ml_reward_result;

typedef struct ml_rewards ml_rewards;
/* On a reward thread; what r points at is gone after it. */
typedef void ml_reward_done(void *ud, const ml_reward_result *r);

/* Names are resolved here, so that a wrong one stops a run before it starts.  Strings must
 * outlive it. */
ml_status ml_rewards_open(ml_rewards **out, const ml_reward_opts *opts, ml_err *err);
/* What was submitted is still scored before this returns.  NULL is fine. */
void ml_rewards_close(ml_rewards *r);

/* `in`, and all it points at, must stay until done is called. */
void ml_rewards_submit(ml_rewards *r, const miles_reward_in *in, ml_reward_done *done,
                       void *ud);
/* The same for samples of one prompt.  Where the reward is one of groups it gets them together,
 * else one by one. */
void ml_rewards_submit_group(ml_rewards *r, const miles_reward_in *const *in /* [n] */,
                             int64_t n, ml_reward_done *done, void *const *ud /* [n] */);
/* Until every submitted sample has its result. */
void ml_rewards_wait(ml_rewards *r);

/* Results so far, by outcome. */
void ml_rewards_counts(ml_rewards *r, int64_t counts[ML_REWARD_OUTCOMES]);

#endif
