/* route_prompt.h - finds the prompt in the body of a request. */
#ifndef ML_SERVE_ROUTE_PROMPT_H
#define ML_SERVE_ROUTE_PROMPT_H

#include "base/str.h"

/* Returns the raw JSON text of the member "text", "input_ids", "prompt" or "messages" of
 * the outermost object; empty if there is none.  Prompts with a common prefix have raw
 * texts with a common prefix, and the router needs no more: it decodes nothing, and leaves
 * errors in the body to the worker. */
ml_str ml_route_prompt(ml_str body);

#endif
