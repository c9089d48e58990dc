/* conversation.h - messages and tools in the form that chat templates expect.
 *
 * Rows and requests come in several formats.  These functions convert them to the one
 * that Miles and SGLang pass to templates.  Values are never changed in place: changed
 * values are allocated in the arena, unchanged ones are shared with the source.
 *
 * thread: any. */
#ifndef ML_TEXT_CHAT_CONVERSATION_H
#define ML_TEXT_CHAT_CONVERSATION_H

#include "base/json.h"

/* [{"role": "user", "content": text}] */
const ml_json *ml_conversation_of_text(ml_arena *a, ml_str text);

/* A list of messages to append to. */
typedef struct ml_messages {
    ml_arena *arena;
    ml_json *list; /* an array */
    const ml_json **link;
} ml_messages;

ml_messages ml_messages_begin(ml_arena *a);
/* Appends a message.  The strings are not copied. */
void ml_messages_append(ml_messages *m, ml_str role, ml_str content);
/* Appends the messages of another list, whose values are shared, not copied. */
void ml_messages_join(ml_messages *m, const ml_json *list);

/* Checks that it is a list of at least one message, each an object with a role. */
ml_status ml_conversation_check(const ml_json *messages, ml_err *err);

/* In messages of the assistant, replaces content that is null (or missing next to tool
 * calls) by "", and tool call arguments that are JSON in a string by the parsed value. */
ml_status ml_conversation_normal(const ml_json **out, ml_arena *a, const ml_json *messages,
                                 ml_err *err);

/* Converts every tool to {"type", "function": {"description", "name", "parameters",
 * "strict"}}, in this order, with defaults for missing members and without any others; a
 * bare function is wrapped.  *out is NULL when there are no tools or the list is empty. */
ml_status ml_tools_normal(const ml_json **out, ml_arena *a, const ml_json *tools,
                          ml_err *err);

/* The bare functions of normalized tools, for templates that expect no wrapper. */
const ml_json *ml_tools_functions(ml_arena *a, const ml_json *tools);

#endif
