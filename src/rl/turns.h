/* turns.h - what is said between the model's turns, to many conversations at once.
 *
 * Conversations whose turn has ended are handed in together, and each is answered by the
 * environment on one of several threads; what comes back are tokens to append.  Nothing
 * is kept of a conversation, so a reply depends on what was said in it alone.
 *
 * thread: one caller at a time. */
#ifndef ML_RL_TURNS_H
#define ML_RL_TURNS_H

#include "rl/environment.h"
#include "rl/turn_tokens.h"
#include "text/tool_calls.h"

/* Strings and what is pointed at must outlive it. */
typedef struct ml_turns_opts {
    ml_environment_opts environment;
    ml_turn_tokens text;
    ml_tool_format tools; /* in which calls of tools are written */
    int32_t max_turn;
    int64_t n_thread;
} ml_turns_opts;

/* One conversation. */
typedef struct ml_turn {
    miles_turn_in in; /* but for calls, which are found here */
    int32_t last;     /* the answer's last token */
    ml_reply reply;   /* given back */
    ml_tokens ids;    /* to append; none: the conversation is over */
} ml_turn;

typedef struct ml_turns ml_turns;

/* Tries the chat template with the roles the environment speaks in. */
ml_status ml_turns_open(ml_turns **out, const ml_turns_opts *opts, ml_err *err);
void ml_turns_close(ml_turns *t); /* NULL is fine */
int32_t ml_turns_max(const ml_turns *t);

/* Replies live until the next call. */
void ml_turns_ask(ml_turns *t, ml_turn *const *turn /* [n] */, int64_t n);

#endif
