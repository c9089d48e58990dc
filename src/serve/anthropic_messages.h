/* anthropic_messages.h - converts requests of Anthropic's Messages API to OpenAI's form.
 *
 *   system                      a message of the role "system"
 *   blocks of type text         one string; several are joined with line feeds
 *   thinking                    "reasoning_content" of the assistant's message
 *   tool_use                    "tool_calls" of the assistant's message
 *   tool_result                 a message of the role "tool"
 *   tools with input_schema     tools of type "function" with parameters
 *
 * Values are allocated in an arena; the parts that need no change are views of the source. */
#ifndef ML_SERVE_ANTHROPIC_MESSAGES_H
#define ML_SERVE_ANTHROPIC_MESSAGES_H

#include "base/json.h"

/* `source` is the text that the values were parsed from; system may be NULL. */
ml_status ml_anthropic_messages_read(const ml_json **out, const ml_json *system,
                                     const ml_json *messages, ml_str source, ml_arena *a,
                                     ml_err *err);
/* *out is NULL if there are no tools. */
ml_status ml_anthropic_tools_read(const ml_json **out, const ml_json *tools, ml_str source,
                                  ml_arena *a, ml_err *err);
/* {"type": "auto", "any", "tool" or "none"} becomes "auto", "required", a function or
 * "none"; *parallel is false if several calls are not allowed. */
ml_status ml_anthropic_tool_choice_read(const ml_json **out, bool *parallel,
                                        const ml_json *choice, ml_arena *a, ml_err *err);

/* "format" of "output_config" becomes a "response_format"; *out is NULL without one. */
ml_status ml_anthropic_format_read(const ml_json **out, const ml_json *config,
                                   ml_str source, ml_arena *a, ml_err *err);

#endif
