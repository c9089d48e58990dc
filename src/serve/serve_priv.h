/* serve_priv.h - declarations shared by the files of this module.
 *
 * A job is one HTTP request that generates.  It has one choice per answer, and each choice
 * is one request to the generator.  A job lives until its reply is complete (or its client
 * has disconnected) and the generator has made its last callback for every choice. */
#ifndef ML_SERVE_SERVE_PRIV_H
#define ML_SERVE_SERVE_PRIV_H

#include <pthread.h>

#include "base/arena.h"
#include "net/handover.h"
#include "net/http_server.h"
#include "base/json_out.h"
#include "serve/adapters.h"
#include "serve/output_queue.h"
#include "serve/response_store.h"
#include "serve/sampling_params.h"
#include "serve/server.h"
#include "serve/session_tokens.h"
#include "serve/text_thread.h"
#include "text/tokenizer/detok.h"

typedef struct ml_job ml_job;
typedef struct ml_choice ml_choice;
typedef struct ml_admin ml_admin;
typedef struct ml_server_metrics ml_server_metrics;
typedef struct ml_probe ml_probe;

/* The functions of one API. */
typedef struct ml_api {
    const char *path;
    ml_status (*read)(ml_job *j, ml_err *err); /* parses the body; if it makes no choices,
                                                  j->out is the reply */
    void (*whole)(ml_job *j, ml_json_out *o);  /* writes a reply that is not streamed */
    void (*piece)(ml_job *j, ml_choice *c);    /* streams the new output of c */
    void (*last)(ml_job *j);                   /* streams the last events */
    void (*release)(ml_choice *c);             /* frees c->ud; may be NULL */
    bool named_events; /* events have names, and no [DONE] ends a stream */
    bool background;   /* read on the text thread; the body may be empty */
} ml_api;

/* The parts of an answer whose JSON a stream keeps: items of lists, and the characters of a
 * string, without brackets and quotes. */
enum { ML_SENT_IDS, ML_SENT_VERSIONS, ML_SENT_TEXT, ML_N_SENT };

struct ml_choice {
    ml_job *job;
    int32_t index; /* in the reply */
    ml_str rid;
    const ml_sampling_params *params;
    const int32_t *prompt;
    int32_t n_prompt;
    int32_t logprob_start; /* first prompt token to report; -1: none */
    int32_t n_top, n_also;
    const int32_t *also;
    bool also_each;            /* as in ml_gen_request */
    uint64_t sample;           /* Philox key within the seed */
    ml_str adapter;            /* its name; empty: none */
    const ml_adapter *lora;    /* the adapter, when the job holds it */
    bool routed[ML_N_ROUTING]; /* return the routing record ... */
    int32_t routed_from;       /* ... of the tokens from this index on */
    bool support, packed;      /* return sampling masks; as base64 */
    /* the generator's request */
    ml_output_queue queue;
    uint64_t ticket;
    bool open; /* the generator has not made its last callback */
    /* output so far */
    ml_logprob_buffer scored, answer; /* of the prompt, of the answer */
    ml_detok *detok;
    ml_stops stops;
    ml_text chosen[ML_N_ROUTING]; /* routing records, i32 rows */
    ml_text text;                 /* as clients see it: a matched stop string is cut off */
    bool cut;                     /* a stop string matched; no more text is added */
    ml_finish finish;
    int32_t matched, n_cached, n_preempt;
    uint64_t version;
    double queued_s, first_s, end_s; /* clock; first_s 0: no token yet */
    char message[200];
    /* a stream: the part already sent */
    bool begun;
    size_t sent_text;
    int32_t sent_tokens;
    ml_text sent_json[ML_N_SENT]; /* of events that repeat the answer: it grows */
    double next_piece_s;          /* clock: no large event is sent before this */
    void *ud;                     /* the API's */
};

#define ML_MAX_RID 1024 /* bytes of a request id */

struct ml_job {
    ml_arena arena;
    ml_arena scratch;    /* the parsed body, and temporaries of parsing */
    ml_text raw;         /* the body; parsed values point into it */
    ml_tokens tokens;    /* of the last text that was encoded */
    ml_encoder *encoder; /* of the thread that parses the request; NULL: no tokenizer */
    ml_text_work work;
    bool away;       /* the text thread has the job, ... */
    bool reading;    /* ... to parse the request: that thread owns all but the list links */
    bool aborted;    /* while it was parsed */
    bool keep_body;  /* the answer needs raw and scratch */
    size_t reserved; /* bytes reserved from the budget for the generator's requests */
    ml_status st;    /* of parsing */
    ml_err err;
    ml_server *server;
    ml_job *prev, *next;
    ml_http_call *call; /* NULL: answered, or the client has disconnected */
    const ml_api *api;
    const ml_json *body;
    ml_str rid; /* empty: each choice has its own */
    bool stream, begun;
    bool other_model;  /* rejected: it names a model not served here */
    bool conflict;     /* rejected: it continues an answer that was cut off */
    bool busy;         /* its reply is being written */
    ml_choice *choice; /* [n_choice] */
    int32_t n_choice;
    int32_t n_open; /* choices that the generator has not finished */
    double start_s;
    ml_api_key *key;      /* that its tokens are charged to; NULL: none */
    int64_t n_embedded;   /* tokens of embeddings */
    int64_t created;      /* Unix time */
    ml_adapter_wait lora; /* the adapters of its choices */
    char id[40];
    ml_text out, event;  /* reply buffer; one event of a stream */
    ml_session *session; /* that records the answer; NULL: none */
    ml_session_turn turn;
    void *ud; /* the API's */
};

/* Labels of the latest weights: SGLang's weight versions are strings. */
#define ML_LABELS 16
typedef struct ml_weight_label {
    uint64_t version;
    char text[80];
} ml_weight_label;

struct ml_server {
    ml_arena arena;
    ml_server_opts opts;
    ml_access access;
    ml_loop *loop;
    ml_http_server *http;
    ml_dispatcher *dispatcher;
    ml_encoder *encoder, *text_encoder; /* of the loop and of the text thread; NULL without
                                           a tokenizer */
    ml_text_thread *text;
    ml_budget budget; /* bytes of requests in flight */
    ml_admin *admin;
    ml_adapters *adapters;
    ml_server_metrics *metrics;
    ml_session_table *sessions; /* NULL: none */
    ml_response_store *responses;
    _Atomic int64_t n_mismatch[ML_MISMATCH_TYPES];
    ml_job *jobs;
    ml_probe *probes; /* of /health_generate */
    int64_t n_job;
    int64_t n_reading; /* jobs that the text thread parses or has queued for parsing */
    atomic_uint_fast64_t n_request; /* for ids */
    uint64_t n_unseeded;            /* for Philox keys */
    uint64_t boot;                  /* makes the ids of this process unique among runs */
    /* of the two fields below: other threads write replies, too */
    pthread_mutex_t label_lock;
    ml_weight_label label[ML_LABELS];
    int32_t n_label;       /* total ever set; the latest ML_LABELS are kept */
    char model_path[4096]; /* source of the weights in use */
    int64_t created;       /* Unix time */
    bool draining;
    bool replaced; /* another server accepts the connections: the drain refuses nothing */
    bool closing;  /* the generator has been closed */
    ml_timer *drain_timer;
    double drain_at_s; /* clock: the end of the drain */
    ml_handover *handover;
};

/* --- server.c --- */
/* Writes the label of a version, or its number if it has no label. */
void ml_server_write_label(ml_server *s, uint64_t version, ml_json_out *o);
void ml_server_set_label(ml_server *s, uint64_t version, ml_str text);
/* Called when a job has ended; the last one ends a drain. */
void ml_server_job_gone(ml_server *s);
void ml_server_new_id(ml_server *s, const char *prefix, char *out, size_t cap);
uint64_t ml_server_new_key(ml_server *s); /* a number that no other call returns */

/* --- reply.c --- */
void ml_reply_json(ml_http_call *c, int status, const ml_text *body);
/* {"error": {"message", "type", "param", "code"}}, the form that OpenAI clients parse; for
 * paths of Anthropic's API {"type": "error", "error": {"type", "message"}}. */
void ml_reply_error(ml_http_call *c, int status, const char *message);
void ml_reply_err(ml_http_call *c, const ml_err *err);
/* The same object, as an event of a stream. */
void ml_anthropic_error_write(ml_json_out *o, int status, const char *message);
/* 404 with OpenAI's code for an unknown model. */
void ml_reply_no_model(ml_http_call *c, const char *message);
int ml_http_status_of(ml_status st);
/* Parses the body as JSON; if `optional`, an empty body is an empty object. */
ml_status ml_read_body(const ml_json **out, ml_http_call *c, ml_arena *a, bool optional,
                       ml_err *err);

/* --- job.c --- */
/* Parses the request and submits its choices to the generator, or replies with an error.
 * The job owns itself from then on. */
void ml_job_serve(ml_server *s, ml_http_call *c, const ml_api *api);
void ml_job_serve_in(ml_server *s, ml_http_call *c, const ml_api *api, ml_session *session);
/* Makes n choices, with rids derived from the job's. */
void ml_job_choices(ml_job *j, int32_t n);
/* Ids are copied for each choice, so long ones are rejected. */
ml_status ml_job_set_rid(ml_job *j, ml_str rid, ml_err *err);
void ml_job_free(ml_job *j);
/* A choice has new output: continues the stream or sends the reply.  May free the job. */
void ml_job_output(ml_job *j, ml_choice *c);
/* Out of memory for the reply: sends the client an error and aborts the generation. */
void ml_job_fail(ml_job *j);
/* Sends an event of a stream. */
void ml_job_send(ml_job *j, const ml_text *json);
void ml_job_send_event(ml_job *j, const char *name, const ml_text *json);
/* Token ids of a text, in the job's arena. */
ml_status ml_job_encode(ml_job *j, ml_str text, bool add_special, const int32_t **id,
                        int32_t *n, ml_err *err);

/* --- choice.c --- */
ml_output_queue_fn ml_choice_output; /* ud: the choice */
void ml_choice_release(ml_choice *c);
/* Inserts kept JSON. */
void ml_choice_write_sent(const ml_choice *c, int part, ml_json_out *o);
/* "stop", "length", "abort"; NULL: not yet. */
const char *ml_choice_finish_word(const ml_choice *c);
/* Writes what ended the choice: a token id, a stop string, or null. */
void ml_choice_matched(const ml_choice *c, ml_json_out *o);
/* Writes the text of one token as a JSON string. */
void ml_token_text(const ml_server *s, int32_t id, ml_json_out *o);

/* --- session_routes.c --- */
/* Attaches a chat, whose messages are those of the request, to the job's session, and takes
 * over the session's parameters. */
ml_status ml_session_begin(ml_job *j, ml_chat *chat, const ml_json *raw, ml_err *err);
/* The prompt of a chat that continues a recorded answer (j->turn.parent). */
ml_status ml_session_prompt(ml_job *j, const ml_chat *chat, ml_choice *c, ml_err *err);
/* Records the finished answer, before the client gets its end. */
void ml_session_record(ml_job *j);

/* --- the endpoints --- */
typedef void ml_endpoint(ml_server *s, ml_http_call *c);
ml_endpoint ml_serve_sessions;                        /* /sessions and all paths below it */
ml_endpoint ml_serve_generate;                        /* generate.c */
ml_endpoint ml_serve_completions;                     /* openai_completions.c */
ml_endpoint ml_serve_chat;                            /* openai_chat.c */
ml_endpoint ml_serve_messages, ml_serve_count_tokens; /* anthropic.c */
ml_endpoint ml_serve_responses,
    ml_serve_stored_response;    /* responses.c; the latter for /v1/responses/ID */
ml_endpoint ml_serve_embeddings; /* embeddings.c */
ml_endpoint ml_serve_tokenize, ml_serve_detokenize; /* tokenize.c */
ml_endpoint ml_serve_health, ml_serve_health_generate, ml_serve_model_info,
    ml_serve_server_info, ml_serve_weight_version, ml_serve_models; /* info.c */
ml_endpoint ml_serve_metrics;                                       /* serve_metrics.c */
ml_endpoint ml_serve_abort, ml_serve_pause, ml_serve_continue, ml_serve_flush,
    ml_serve_release_memory, ml_serve_resume_memory; /* admin.c */
ml_endpoint ml_serve_update_from_disk, ml_serve_update_version,
    ml_serve_pull_weights; /* admin_weights.c */
ml_endpoint ml_serve_load_lora, ml_serve_receive_lora,
    ml_serve_unload_lora; /* adapters.c */
ml_endpoint ml_serve_init_group, ml_serve_destroy_group, ml_serve_begin_update,
    ml_serve_update_from_group, ml_serve_end_update; /* admin_group.c */

/* --- info.c --- */
void ml_probes_free(ml_server *s);

/* --- admin.c --- */
ml_status ml_admin_open(ml_admin **out, ml_server *s, ml_err *err);
void ml_admin_close(ml_admin *a); /* NULL is allowed; waits for the running task */

/* --- job.c, choice.c --- */
/* Tokens that a choice has used. */
void ml_job_use(ml_job *j, int64_t n_prompt, int64_t n_answer);

/* --- serve_metrics.c --- */
ml_server_metrics *ml_server_metrics_new(ml_arena *a);
void ml_server_metrics_first_token(ml_server_metrics *m, const ml_choice *c);
void ml_server_metrics_tokens(ml_server_metrics *m, double seconds, int32_t n);
void ml_server_metrics_end(ml_server_metrics *m, const ml_choice *c);

/* --- meta_info.c --- */
typedef struct ml_meta_opts {
    bool logprobs, text, entropy;
    int32_t from; /* answer tokens before this index are left out */
    bool grown;   /* lists of answer tokens are in sent_json */
} ml_meta_opts;
void ml_meta_info_write(const ml_choice *c, ml_meta_opts opts, ml_json_out *o);

#endif
