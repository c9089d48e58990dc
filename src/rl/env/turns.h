/* turns.h - the environment's replies between the model's turns.
 *
 * The caller submits a conversation whose turn has ended; one of several threads asks the
 * environment, encodes the reply into the tokens to append, and calls back.  Conversations
 * do not wait for each other.  No state is kept per conversation, so a reply depends only
 * on the conversation's contents.
 *
 * thread: submit from any thread; open and close from one. */
#ifndef ML_RL_ENV_TURNS_H
#define ML_RL_ENV_TURNS_H

#include "base/job_queue.h"
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
    ml_job job;       /* first */
    miles_turn_in in; /* except calls, which are parsed here */
    int32_t last;     /* the answer's last token */
    ml_reply reply;   /* output; its pointers are valid until `replied` returns */
    ml_tokens ids;    /* to append; none: the conversation has ended */
    /* Called on one of the threads.  It is the last function to use the turn. */
    void (*replied)(struct ml_turn *turn);
    void *ud;
} ml_turn;

typedef struct ml_turns ml_turns;

/* Checks the chat template with the roles that the environment uses. */
ml_status ml_turns_open(ml_turns **out, const ml_turns_opts *opts, ml_err *err);
void ml_turns_close(ml_turns *t); /* NULL is allowed */
int32_t ml_turns_max(const ml_turns *t);

/* The turn, and everything `in` points to, must stay valid until turn->replied is called. */
void ml_turns_submit(ml_turns *t, ml_turn *turn);

#endif
