/* server.h - SGLang's native API and OpenAI's, over something that generates.
 *
 * Requests are read, checked and turned into ml_gen_requests; tokens come back through
 * mailboxes and leave as JSON, whole or streamed.  docs/SERVING.md lists the endpoints.
 *
 * thread: the loop's.  One more thread, the server's own, waits where the generator makes
 * callers wait (pausing, loading weights). */
#ifndef ML_SERVE_SERVER_H
#define ML_SERVE_SERVER_H

#include "engine/gen.h"
#include "net/loop.h"
#include "serve/access.h"
#include "text/tool_calls.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct ml_server ml_server;

/* Memory that can be given back for a while, as engine/local.h does; zeros where it cannot. */
typedef struct ml_server_memory {
    void (*release)(ml_gen *g, bool kv, bool weights);
    ml_status (*take)(ml_gen *g, bool kv, bool weights, ml_err *err);
} ml_server_memory;

/* Everything pointed at stays the caller's and outlives the server. */
typedef struct ml_server_opts {
    const char *host;
    int port;              /* 0: any free one */
    ml_access_opts access; /* who may use it */
    ml_gen *gen;
    ml_server_memory memory;
    const ml_tokenizer *tokenizer; /* NULL: requests and replies are token ids */
    const ml_chat_template *chat;  /* NULL: no /v1/chat/completions */
    ml_tool_format tools;
    const struct ml_sampling_params *defaults; /* of OpenAI's requests; NULL: OpenAI's */
    int32_t n_vocab, context;
    const char *model_path, *tokenizer_path, *model_name, *model_type;
    const char *load_format, *weight_version;
    const char *const *weight_root; /* requests may name directories below these; */
    int n_weight_root;              /* 0: below the one that holds the model's */
    ml_str flags;         /* members of a JSON object, for /server_info; may be empty */
    const char *version;  /* of this program */
    uint64_t seed;        /* of requests that name none */
    size_t max_body;      /* bytes of one request */
    size_t max_in_flight; /* bytes that all requests in flight hold; 0: no limit */
    int max_connections;
    double drain_s;   /* what is in flight may take so long after ml_server_drain */
    bool incremental; /* streams of /generate carry what is new, not all so far */
    bool log_requests;
} ml_server_opts;

/* Versions count up from a label that is a number; larger numbers are refused, so that they
 * neither wrap around nor lose digits in JSON. */
#define ML_WEIGHT_VERSION_MAX ((uint64_t)1 << 53)
/* The number that a label is; 0: it is a name. */
ml_status ml_weight_version_read(uint64_t *out, ml_str label, ml_err *err);

ml_status ml_server_open(ml_server **out, ml_loop *l, const ml_server_opts *opts,
                         ml_err *err);
int ml_server_port(const ml_server *s);
/* Takes no new requests, lets those in flight end, and stops the loop. */
void ml_server_drain(ml_server *s);
/* After the generator was closed: it makes no calls any more.  NULL is fine. */
void ml_server_close(ml_server *s);

#endif
