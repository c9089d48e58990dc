/* conversation.h - messages and tools in the form that chat templates are given.
 *
 * Rows and requests come in several dialects; before a template sees them they are
 * brought to one, the one Miles and SGLang use.  Values are never changed in place:
 * what differs is copied to the arena, what does not is shared with the source.
 *
 * thread: any. */
#ifndef ML_RL_CONVERSATION_H
#define ML_RL_CONVERSATION_H

#include "base/json.h"

/* [{"role": "user", "content": text}] */
const ml_json *ml_conversation_of_text(ml_arena *a, ml_str text);

/* A list of messages that grows. */
typedef struct ml_messages {
    ml_arena *arena;
    ml_json *list; /* an array */
    const ml_json **link;
} ml_messages;

ml_messages ml_messages_begin(ml_arena *a);
/* Texts are not copied. */
void ml_messages_say(ml_messages *m, ml_str role, ml_str content);
/* Shares the messages of another list. */
void ml_messages_join(ml_messages *m, const ml_json *list);

/* Is it a list of at least one message, each an object with a role? */
ml_status ml_conversation_check(const ml_json *messages, ml_err *err);

/* In messages of the assistant, content that is null (or missing beside tool calls) becomes
 * "", and arguments of tool calls that are JSON in a string become the value. */
ml_status ml_conversation_normal(const ml_json **out, ml_arena *a, const ml_json *messages,
                                 ml_err *err);

/* Every tool as {"type", "function": {"description", "name", "parameters", "strict"}}, in this
 * order, with defaults for what is missing and nothing else; a bare function is wrapped.
 * No tools, or an empty list, give NULL. */
ml_status ml_tools_normal(const ml_json **out, ml_arena *a, const ml_json *tools,
                          ml_err *err);

/* The functions of normal tools without their wrapping, for templates that want it so. */
const ml_json *ml_tools_functions(ml_arena *a, const ml_json *tools);

#endif
