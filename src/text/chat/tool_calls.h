/* tool_calls.h - finds tool calls in the text of an answer while it is streamed.
 *
 * The input is text in pieces; the output is the text outside of calls, and complete calls.
 * The formats:
 *
 *   qwen     <tool_call>{"name": ..., "arguments": {...}}</tool_call>, anywhere, any number
 *   llama3   <|python_tag|>{"name": ..., "parameters": {...}}, or the object alone as the
 *            whole answer; several are separated by ;
 *
 * Text that resembles a call but is not one (invalid JSON, a tool that was not offered) is
 * passed on as text, so that no output of the model is lost. */
#ifndef ML_TEXT_CHAT_TOOL_CALLS_H
#define ML_TEXT_CHAT_TOOL_CALLS_H

#include <stdint.h>

#include "base/json.h"

typedef enum ml_tool_format {
    ML_TOOLS_NONE,
    ML_TOOLS_QWEN,
    ML_TOOLS_LLAMA3
} ml_tool_format;

/* "qwen25", "llama3"; NULL for none. */
const char *ml_tool_format_name(ml_tool_format f);

typedef struct ml_tool_call {
    ml_str name;
    ml_str arguments; /* JSON, as the model wrote it */
} ml_tool_call;

typedef struct ml_tool_reader {
    ml_tool_format format;
    const ml_json *tools; /* the tools of the request; NULL: any name is accepted */
    ml_arena *arena;      /* memory of the calls */
    ml_text held;         /* text that is, or may become, part of a call */
    bool inside;          /* held begins with the opening of a call */
    bool plain;           /* llama3: the answer is text */
    bool after;           /* qwen: a call has just ended; whitespace is skipped */
    ml_tool_call *call;   /* [n] */
    int32_t n, cap;
} ml_tool_reader;

void ml_tool_reader_init(ml_tool_reader *r, ml_tool_format f, const ml_json *tools,
                         ml_arena *a);
void ml_tool_reader_release(ml_tool_reader *r);

/* Appends text outside of calls to `text`, and complete calls to the list. */
void ml_tool_reader_push(ml_tool_reader *r, ml_str piece, ml_text *text);
void ml_tool_reader_finish(ml_tool_reader *r, ml_text *text);

#endif
