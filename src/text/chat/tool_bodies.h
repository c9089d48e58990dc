/* tool_bodies.h - reads the text of one tool call, or of several, in each format. */
#ifndef ML_TEXT_CHAT_TOOL_BODIES_H
#define ML_TEXT_CHAT_TOOL_BODIES_H

#include "text/chat/tool_calls.h"

/* Appends the calls in `body`; false, without a change: these are no calls of offered
 * tools. */
typedef bool ml_tool_body_fn(ml_tool_reader *r, ml_str body);

ml_tool_body_fn ml_tool_body_json;        /* {"name": ..., "arguments": {...}} */
ml_tool_body_fn ml_tool_body_objects;     /* such objects, separated by ; */
ml_tool_body_fn ml_tool_body_list;        /* [such objects] */
ml_tool_body_fn ml_tool_body_mistral;     /* a list, or NAME[ARGS]{...} */
ml_tool_body_fn ml_tool_body_deepseek_v3; /* function<sep>NAME ```json {...} ``` */
ml_tool_body_fn ml_tool_body_deepseek;    /* NAME<sep>{...} */
ml_tool_body_fn ml_tool_body_dsml;        /* NAME">, parameters with a mark string="..." */
ml_tool_body_fn ml_tool_body_glm;         /* NAME, <arg_key> and <arg_value> */
ml_tool_body_fn ml_tool_body_kimi;        /* functions.NAME:0<mark>{...} */
ml_tool_body_fn ml_tool_body_function;    /* NAME>, <parameter=KEY>VALUE</parameter> */
ml_tool_body_fn ml_tool_body_invoke;      /* NAME">, <parameter name="KEY">VALUE... */
ml_tool_body_fn ml_tool_body_pythonic;    /* [f(a=1, b="x"), ...] */
ml_tool_body_fn ml_tool_body_harmony;     /* NAME <|constrain|>json<|message|>{...} */

/* Whitespace at both ends removed. */
ml_str ml_tool_trimmed(ml_str s);

#endif
