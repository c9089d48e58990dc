/* responses_items.h - translates the parts of a request to OpenAI's Responses API to those of a
 * chat.
 *
 * Items of the assistant that follow each other (reasoning, text, function calls) are one message
 * of a chat. */
#ifndef ML_SERVE_RESPONSES_ITEMS_H
#define ML_SERVE_RESPONSES_ITEMS_H

#include "base/json.h"

/* Appends the messages of "input", a string or a list of items, as JSON objects with commas between
 * them. */
ml_status ml_responses_input_read(ml_text *out, const ml_json *input, ml_err *err);

/* Appends a text: a string, or a list of text parts. */
ml_status ml_responses_text_read(ml_text *out, const ml_json *v, ml_err *err);

/* NULL: none.  The results are in the arena. */
ml_status ml_responses_tools_read(const ml_json **out, const ml_json *tools, ml_arena *a,
                                  ml_err *err);
ml_status ml_responses_tool_choice_read(const ml_json **out, const ml_json *choice,
                                        ml_arena *a, ml_err *err);
/* "text": {"format": ...} as a response_format. */
ml_status ml_responses_format_read(const ml_json **out, const ml_json *text, ml_arena *a,
                                   ml_err *err);

#endif
