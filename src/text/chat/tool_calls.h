/* tool_calls.h - finds tool calls in the text of an answer while it is streamed.
 *
 * The input is text in pieces; the output is the text outside of calls, and complete calls.
 * docs/SERVING.md lists the formats, by SGLang's names.  Text that resembles a call but is
 * not one (invalid JSON, a tool that was not offered) is passed on as text, so that no
 * output of the model is lost. */
#ifndef ML_TEXT_CHAT_TOOL_CALLS_H
#define ML_TEXT_CHAT_TOOL_CALLS_H

#include <stdint.h>

#include "base/json.h"

typedef enum ml_tool_format {
    ML_TOOLS_NONE,
    ML_TOOLS_QWEN,
    ML_TOOLS_LLAMA3,
    ML_TOOLS_MISTRAL,
    ML_TOOLS_DEEPSEEK_V3,
    ML_TOOLS_DEEPSEEK_V31,
    ML_TOOLS_DEEPSEEK_V32,
    ML_TOOLS_GLM,
    ML_TOOLS_KIMI_K2,
    ML_TOOLS_QWEN3_CODER,
    ML_TOOLS_MINIMAX_M2,
    ML_TOOLS_PYTHONIC,
    ML_TOOLS_GPT_OSS,
    ML_N_TOOLS,
    ML_TOOLS_LIST =
        ML_N_TOOLS, /* a JSON list of calls: what a grammar makes of an answer */
} ml_tool_format;

/* "qwen25", "llama3", ...; NULL for none. */
const char *ml_tool_format_name(ml_tool_format f);
/* The format of one of SGLang's names, of which some share one; NONE: not known. */
ml_tool_format ml_tool_format_find(const char *name);
/* Its marks are special tokens: the text must contain them. */
bool ml_tool_format_has_special(ml_tool_format f);

/* For grammars: what begins a call, what separates two calls, and the text before and
 * after the arguments.  NULL: calls are not JSON, or their marks are special tokens. */
const char *ml_tool_format_trigger(ml_tool_format f);
const char *ml_tool_format_separator(ml_tool_format f);
void ml_tool_format_wrap(ml_tool_format f, ml_str name, ml_text *begin, ml_text *end);

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
    bool plain;           /* the beginning of the answer has decided that it is text */
    bool after;           /* a call has just ended; whitespace is skipped */
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
