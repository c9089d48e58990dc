/* environment.h - one thread's handle of an environment: an extension or a worker process.
 *
 * A worker process gets one line for each turn,
 *
 *     {"index": 7, "turn": 1, "max_turn": 16, "prompt": "...", "response": "...",
 *      "answer": "...", "calls": [{"name": "...", "arguments": {...}}],
 *      "label": ..., "metadata": ...}
 *
 * and answers {"messages": [{"role": "tool", "content": "..."}]}, {"text": "..."} for text
 * that is appended verbatim, or {"done": true}, optionally with a "reward"; null is
 * the same as {"done": true}, and {"error": "..."} leaves the sample without a reward.
 *
 * thread: one at a time. */
#ifndef ML_RL_ENV_ENVIRONMENT_H
#define ML_RL_ENV_ENVIRONMENT_H

#include "base/json.h"
#include "rl/reward/rewards.h"
#include "base/line_process.h"
#include "base/worker_pool.h"

/* The environment's reply to a turn of the model. */
typedef struct ml_reply {
    ml_arena *arena;           /* the caller's; holds messages and text */
    ml_reward_outcome outcome; /* unless ok, only `why` is valid */
    const ml_json *messages;   /* NULL: none */
    ml_str text;               /* appended verbatim; empty: none */
    double reward;             /* NaN: the environment gave none */
    const char *why;           /* error message unless ok */
} ml_reply;

typedef struct ml_environment_opts {
    const miles_generate *ext; /* this extension, the command or a Python function */
    ml_worker_command command;
    ml_worker_pool_opts python;
    const char *python_flag; /* "turn", or that of the function that executes tool calls */
    ml_worker_pool *pool;    /* of python; set by ml_turns_open */
    ml_str args;             /* the flags of the run, a JSON object */
    int64_t memory_bytes;    /* limit of a worker process; 0: none */
    double deadline_s;       /* per turn */
} ml_environment_opts;

typedef struct ml_environment ml_environment;

/* The options must outlive the environment. */
ml_environment *ml_environment_new(const ml_environment_opts *opts);
void ml_environment_free(ml_environment *e); /* NULL is allowed */

/* The caller sets reply->arena. */
void ml_environment_reply(ml_environment *e, ml_reply *reply, const miles_turn_in *in);

#endif
