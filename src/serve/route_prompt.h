/* route_prompt.h - where in a request's body its prompt stands. */
#ifndef ML_SERVE_ROUTE_PROMPT_H
#define ML_SERVE_ROUTE_PROMPT_H

#include "base/str.h"

/* The source text of the member "text", "input_ids", "prompt" or "messages" of the outermost
 * object; empty when there is none.  Prompts that begin alike have texts that begin alike,
 * which is all that a router needs to know: nothing is decoded, and the worker is left to
 * complain about what is malformed. */
ml_str ml_route_prompt(ml_str body);

#endif
