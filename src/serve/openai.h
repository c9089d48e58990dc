/* openai.h - code shared by /v1/completions, /v1/chat/completions and the endpoints that
 * translate their requests to a chat. */
#ifndef ML_SERVE_OPENAI_H
#define ML_SERVE_OPENAI_H

#include "serve/serve_priv.h"

/* The body of either endpoint; each uses the fields that its rows name. */
typedef struct ml_openai_body {
    ml_sampling_params sampling;
    ml_str model, rid, adapter;
    const ml_json *stream_options;
    bool stream, token_ids, prompt_ids, meta_info;
    int32_t max_tokens; /* -1: not given */
    /* completions */
    const ml_json *prompt;
    int32_t n_logprob; /* -1: no log-probabilities */
    int32_t best_of;   /* answers for each prompt, of which n_shown are returned */
    int32_t n_shown;
    bool echo;
    ml_str *prompt_text; /* [n_prompt], set with echo */
    /* chat */
    const ml_json *messages, *tools, *tool_choice, *template_kwargs, *input_ids, *format;
    int32_t max_completion_tokens, top_logprobs;
    bool logprobs, continue_final, parallel_calls;
    bool separate_reasoning, stream_reasoning;
    /* A grammar makes the answer calls without other text; or, a JSON list of calls. */
    bool calls_only, calls_as_list;
    const char *call_prefix; /* of the ids of tool calls; NULL: "call_" */
    bool keeps_text;         /* the whole answer is needed at its end, as in a session */
    /* from stream_options */
    bool usage, usage_each;
} ml_openai_body;

extern const ml_field ml_openai_rows[]; /* the fields of both endpoints */

/* Reads j->body by `rows` into j->ud, or into a new body if it is NULL, and checks the
 * common fields. */
ml_status ml_openai_read(ml_job *j, const ml_field *rows, ml_err *err);

/* Whether the name of a model is that of the server's own, or empty. */
bool ml_openai_is_base(const ml_server *s, ml_str model);

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

/* --- openai_chat.c --- */

/* Of a choice of a chat: the tool-call parser, and how much has been sent. */
typedef struct ml_chat_choice {
    ml_reasoning_reader reasoner;
    ml_tool_reader reader;
    size_t n_read;     /* bytes of the choice's text that the readers have parsed */
    ml_text reasoning; /* in a stream, its unsent part */
    ml_text content;   /* text outside calls; in a stream, its unsent part */
    ml_text rest;      /* text after the reasoning, on its way to the reader of calls */
    int32_t sent_calls;
    bool ended;        /* the reader has seen the end of the text */
    ml_text whole;     /* in a session, or if the body says so: all text outside calls */
    uint64_t call_key; /* makes the ids of its calls unique */
    /* Anthropic's streams: content blocks that have ended; whether one is open */
    int32_t n_block;
    bool in_block;
} ml_chat_choice;

/* Makes the choices of a chat whose body, j->ud, has been read; each has an ml_chat_choice
 * in c->ud. */
ml_status ml_chat_prepare(ml_job *j, ml_err *err);
/* Parses the text that the choice has got since the last call. */
void ml_chat_read_text(ml_choice *c);
void ml_chat_release(ml_choice *c); /* frees c->ud */
/* The whole answer as a message, for a session. */
void ml_chat_answer_write(const ml_choice *c, ml_json_out *o);
/* Log-probabilities of the answer's tokens from `from` on, a list: empty unless requested. */
void ml_chat_logprobs_write(const ml_choice *c, int32_t from, ml_json_out *o);
extern const ml_api ml_chat_api;
extern const ml_api ml_messages_api;  /* anthropic.c */
extern const ml_api ml_responses_api; /* responses.c */
#define ML_CALL_ID 40
void ml_chat_call_id(const ml_choice *c, int32_t index, char out[ML_CALL_ID]);

#endif
