/* server.h - an HTTP server with SGLang's native API and OpenAI's, on top of a generator.
 *
 * The server parses and validates requests and turns them into ml_gen_requests; tokens come
 * back through output queues and are sent as JSON, whole or streamed.  docs/SERVING.md
 * lists the endpoints.
 *
 * thread: the event loop's.  The server owns two more threads: one for generator calls that
 * block (pausing, loading weights; admin.c), and one for large texts (text_thread.h). */
#ifndef ML_SERVE_SERVER_H
#define ML_SERVE_SERVER_H

#include "gen/local.h"
#include "net/loop.h"
#include "serve/access.h"
#include "serve/session.h"
#include "text/grammar/grammar.h"
#include "text/chat/reasoning.h"
#include "text/chat/tool_calls.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_server ml_server;

/* Functions that release memory and allocate it again later, as in gen/local.h; NULL if
 * the generator cannot do this. */
typedef struct ml_server_memory {
    void (*release)(ml_gen *g, bool kv, bool weights);
    ml_status (*take)(ml_gen *g, bool kv, bool weights, ml_err *err);
} ml_server_memory;

/* An adapter to load at the start. */
typedef struct ml_server_adapter {
    const char *name, *dir;
    bool pinned;
} ml_server_adapter;

/* LoRA adapters: `set` as in gen/local.h, or NULL if the generator has none. */
typedef struct ml_server_lora {
    ml_status (*set)(ml_gen *g, int32_t slot, const ml_adapter_source *from, ml_err *err);
    const char *trained; /* the name of the adapter that all requests use; NULL: none */
    const ml_server_adapter *adapter; /* [n] */
    int n;
    int32_t max_loaded; /* adapters in memory; 0: any number */
} ml_server_lora;

/* The caller owns everything pointed to, and keeps it alive longer than the server. */
typedef struct ml_server_opts {
    const char *host;
    int port;              /* 0: any free port */
    ml_access_opts access; /* keys, hosts and origins that are accepted */
    ml_gen *gen;
    ml_server_memory memory;
    /* Weights over TCP, as in gen/local.h; NULL if the generator cannot do this. */
    ml_status (*group)(ml_gen *g, ml_group_op op, const char *json, uint64_t version,
                       ml_switch how, ml_err *err);
    ml_server_lora lora;
    /* Embeddings, as in gen/local.h; NULL: none. */
    ml_status (*embed)(ml_gen *g, const ml_embed_request *q, ml_err *err);
    ml_pooling pooling;
    int32_t embed_tokens, n_hidden; /* of the longest input; of a vector */
    const ml_tokenizer *tokenizer;  /* NULL: requests and replies are token ids */
    const ml_chat_template *chat;   /* NULL: no /v1/chat/completions */
    ml_grammar_cache *grammars;     /* of the generator; NULL: it compiles them itself */
    ml_tool_format tools;
    const ml_reasoning_format *reasoning; /* NULL: reasoning stays in the text */
    ml_session_opts sessions;
    const struct ml_sampling_params *defaults; /* of OpenAI requests; NULL: OpenAI's */
    int32_t n_vocab, context;
    const char *model_path, *tokenizer_path, *model_name, *model_type;
    const char *load_format, *weight_version;
    const char *const *weight_root; /* requests may name directories below these; */
    int n_weight_root;              /* 0: below the parent of the model's directory */
    ml_str flags;         /* JSON object members, for /server_info; may be empty */
    const char *version;  /* of this program */
    uint64_t seed;        /* of requests without a seed */
    size_t max_body;      /* bytes of one request */
    size_t max_in_flight; /* bytes held by all requests in flight; 0: no limit */
    int max_connections;
    double drain_s;       /* after ml_server_drain, requests in flight get this long */
    const char *handover; /* path for ml_handover; NULL: none */
    bool incremental; /* /generate streams only new output in each event, not all so far */
    bool log_requests;
} ml_server_opts;

/* If the label is a number, versions count up from it.  Larger numbers are rejected: they
 * would wrap around, or lose digits in JSON. */
#define ML_WEIGHT_VERSION_MAX ((uint64_t)1 << 53)
/* Parses a label as a number; 0: the label is a name. */
ml_status ml_weight_version_read(uint64_t *out, ml_str label, ml_err *err);

ml_status ml_server_open(ml_server **out, ml_loop *l, const ml_server_opts *opts,
                         ml_err *err);
int ml_server_port(const ml_server *s);
/* opts.max_connections, or less where the process may not open as many files. */
int ml_server_max_connections(const ml_server *s);
/* Accepts no new requests, lets requests in flight finish, then stops the loop. */
void ml_server_drain(ml_server *s);
/* Close the generator first, so that it makes no more callbacks.  NULL is allowed. */
void ml_server_close(ml_server *s);

#endif
