/* output_form.h - the form of answers that OpenAI's requests ask for, as a grammar:
 * response_format, tool_choice, strict tools, parallel_tool_calls. */
#ifndef ML_SERVE_OUTPUT_FORM_H
#define ML_SERVE_OUTPUT_FORM_H

#include "serve/openai.h"

/* Sets a grammar of b->sampling from "response_format". */
ml_status ml_response_format_read(ml_job *j, ml_openai_body *b, ml_err *err);

/* Checks "tools" and "tool_choice" and sets the grammar that they need.  With tool_choice
 * none, b->tools is NULL afterwards. */
ml_status ml_tool_choice_read(ml_job *j, ml_openai_body *b, ml_err *err);

#endif
