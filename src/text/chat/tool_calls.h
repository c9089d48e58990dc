/* tool_calls.h - calls of tools found in an answer's text as it comes.
 *
 * Text goes in, in pieces; what is not a call comes out as text, what is comes out as calls,
 * whole ones.  The formats:
 *
 *   qwen     <tool_call>{"name": ..., "arguments": {...}}</tool_call>, anywhere, any number
 *   llama3   <|python_tag|>{"name": ..., "parameters": {...}}, or the object alone as the
 *            whole answer; several are separated by ;
 *
 * What looks like a call and is not (bad JSON, a tool that was not offered) is text: nothing a
 * model wrote gets lost. */
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
    const ml_json *tools; /* the request's list, or NULL: any name will do */
    ml_arena *arena;      /* calls live there */
    ml_text held;         /* text that may be, or is part of, a call */
    bool inside;          /* held begins with a call's opening */
    bool plain;           /* llama3: the answer is text */
    bool after;           /* qwen: a call ended right before; blanks are the format's */
    ml_tool_call *call;   /* [n] */
    int32_t n, cap;
} ml_tool_reader;

void ml_tool_reader_init(ml_tool_reader *r, ml_tool_format f, const ml_json *tools,
                         ml_arena *a);
void ml_tool_reader_release(ml_tool_reader *r);

/* Appends to `text` what is no call; calls that are complete are added to the list. */
void ml_tool_reader_push(ml_tool_reader *r, ml_str piece, ml_text *text);
void ml_tool_reader_finish(ml_tool_reader *r, ml_text *text);

#endif
