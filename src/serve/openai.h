/* openai.h - code shared by /v1/completions and /v1/chat/completions. */
#ifndef ML_SERVE_OPENAI_H
#define ML_SERVE_OPENAI_H

#include "serve/serve_priv.h"

/* The body of either endpoint; each uses the fields that its rows name. */
typedef struct ml_openai_body {
    ml_sampling_params sampling;
    ml_str model, rid;
    const ml_json *stream_options;
    bool stream, token_ids, prompt_ids, meta_info;
    int32_t max_tokens; /* -1: not given */
    /* completions */
    const ml_json *prompt;
    int32_t n_logprob; /* -1: no log-probabilities */
    int32_t best_of;
    bool echo;
    ml_str *prompt_text; /* [n_prompt], set with echo */
    /* chat */
    const ml_json *messages, *tools, *tool_choice, *template_kwargs, *input_ids, *format;
    int32_t max_completion_tokens, top_logprobs;
    bool logprobs, continue_final, parallel_calls;
    bool separate_reasoning, stream_reasoning;
    /* A grammar makes the answer calls without other text; or, a JSON list of calls. */
    bool calls_only, calls_as_list;
    /* from stream_options */
    bool usage, usage_each;
} ml_openai_body;

extern const ml_field ml_openai_rows[]; /* the fields of both endpoints */

/* Reads j->body by `rows` into a new body, j->ud, and checks the common fields. */
ml_status ml_openai_read(ml_job *j, const ml_field *rows, ml_err *err);

/* Makes n choices for each of n_prompt prompts.  The caller fills in the first choice of
 * each prompt; ml_openai_copy_choices then copies it to the others. */
ml_status ml_openai_choices(ml_job *j, int32_t n_prompt, ml_err *err);
void ml_openai_copy_choices(ml_job *j);

/* {"id", "object", "created", "model", and an open "choices": [ */
void ml_openai_begin(const ml_job *j, const char *object, ml_json_out *o);
/* ], "usage"}: the sum over all choices, or null */
void ml_openai_end(const ml_job *j, bool usage, ml_json_out *o);

/* Ends a stream: sends a last event with the usage, if requested. */
void ml_openai_last(ml_job *j, const char *object);

/* "finish_reason": ..., "matched_stop": ...; word NULL: the choice's own reason. */
void ml_openai_finish(const ml_choice *c, const char *word, ml_json_out *o);

#endif
