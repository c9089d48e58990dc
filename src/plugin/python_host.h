/* python_host.h - answers requests of Python workers to the program: grading, the run's
 * tokenizer and chat template, the address of its engine, its prompts.
 *
 * A request is {"ask": WHAT, ...}, its answer {"value": ...} or {"error": "..."}.
 *
 * A process has one run, and workers are started before its parts exist: they are given to
 * the host when they do.  This is global state, set before functions are called that need
 * it; its lock orders the threads.
 *
 * thread: any. */
#ifndef ML_PLUGIN_PYTHON_HOST_H
#define ML_PLUGIN_PYTHON_HOST_H

#include "base/arena.h"
#include "base/json.h"
#include "rl/data/dataset.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_python_parts {
    const ml_tokenizer *tokenizer;         /* NULL: none */
    const ml_chat_template *chat_template; /* NULL: none */
    const char *model;                     /* its directory */
    const ml_dataset *rows;                /* of --prompt-data; NULL: none */
    const char *host, *key;                /* of the engine; NULL: it does not serve */
    int port;
    const char *session_host, *session_key; /* of the session server; NULL: there is none */
    int session_port;
    /* Appends the JSON of the next n groups of prompts; false: `out` has a message. */
    bool (*get_samples)(void *ud, int64_t n, ml_text *out);
    /* Appends the JSON of the answers to all evaluation sets. */
    bool (*evaluate)(void *ud, ml_text *out);
    void *ud;
} ml_python_parts;

/* Strings and pointers must stay valid until they are replaced. */
void ml_python_host_set(const ml_python_parts *parts);
ml_python_parts ml_python_host_get(void);

/* As ml_worker_pool_opts.serve. */
void ml_python_serve(void *ud, ml_str request, ml_text *answer);

#endif
