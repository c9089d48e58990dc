/* environment.h - one thread's way to an environment: a row or a worker process.
 *
 * A worker is asked a line for each turn,
 *
 *     {"index": 7, "turn": 1, "max_turn": 16, "prompt": "...", "response": "...",
 *      "answer": "...", "calls": [{"name": "...", "arguments": {...}}],
 *      "label": ..., "metadata": ...}
 *
 * and answers {"messages": [{"role": "tool", "content": "..."}]}, {"text": "..."} for text
 * that stands in the conversation as it is, or {"done": true}, maybe with a "reward"; null
 * is the same as {"done": true}, and {"error": "..."} leaves the sample without a reward.
 *
 * thread: one at a time. */
#ifndef ML_RL_ENVIRONMENT_H
#define ML_RL_ENVIRONMENT_H

#include "base/json.h"
#include "rl/reward/rewards.h"
#include "base/line_process.h"

/* What is said next. */
typedef struct ml_reply {
    ml_arena *arena;           /* the asker's; messages and text live there */
    ml_reward_outcome outcome; /* unless ok, nothing below but why counts */
    const ml_json *messages;   /* NULL: none */
    ml_str text;               /* as it is; empty: none */
    double reward;             /* NaN: none was given */
    const char *why;           /* a sentence unless ok */
} ml_reply;

typedef struct ml_environment_opts {
    const miles_generate *row; /* one of the two */
    ml_worker_command command;
    int64_t memory_bytes; /* of a worker process; 0: no bound */
    double deadline_s;    /* for a turn */
} ml_environment_opts;

typedef struct ml_environment ml_environment;

/* The options must outlive it. */
ml_environment *ml_environment_new(const ml_environment_opts *opts);
void ml_environment_free(ml_environment *e); /* NULL is fine */

/* reply->arena is given. */
void ml_environment_ask(ml_environment *e, ml_reply *reply, const miles_turn_in *in);

#endif
