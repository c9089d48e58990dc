/* turns.h - the environment's replies between the model's turns, for many conversations at
 * once.
 *
 * The caller passes all conversations whose turn has ended; the environment answers each
 * on one of several threads and returns the tokens to append.  No state is kept per
 * conversation, so a reply depends only on the conversation's contents.
 *
 * thread: one caller at a time. */
#ifndef ML_RL_ENV_TURNS_H
#define ML_RL_ENV_TURNS_H

#include "rl/env/environment.h"
#include "rl/env/turn_tokens.h"
#include "text/chat/tool_calls.h"

/* Strings and pointers must outlive it. */
typedef struct ml_turns_opts {
    ml_environment_opts environment;
    ml_turn_tokens text;
    ml_tool_format tools; /* the syntax of tool calls */
    int32_t max_turn;
    int64_t n_thread;
} ml_turns_opts;

/* One conversation. */
typedef struct ml_turn {
    miles_turn_in in; /* except calls, which are parsed here */
    int32_t last;     /* the answer's last token */
    ml_reply reply;   /* output */
    ml_tokens ids;    /* to append; none: the conversation has ended */
} ml_turn;

typedef struct ml_turns ml_turns;

/* Checks the chat template with the roles that the environment uses. */
ml_status ml_turns_open(ml_turns **out, const ml_turns_opts *opts, ml_err *err);
void ml_turns_close(ml_turns *t); /* NULL is allowed */
int32_t ml_turns_max(const ml_turns *t);

/* Replies are valid until the next call. */
void ml_turns_run(ml_turns *t, ml_turn *const *turn /* [n] */, int64_t n);

#endif
