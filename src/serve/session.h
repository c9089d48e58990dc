/* session.h - conversations of agents, recorded as the tokens that were drawn.
 *
 * A session is a tree.  A node is one answer of the model: the messages that the request
 * added, the tokens of the prompt after those of its parent, and the drawn tokens with
 * log-probs and versions.  A request names all messages of its conversation.  It attaches
 * to the deepest node whose messages it repeats; the tokens up to that node are reused, and
 * only the messages after it are rendered and tokenized.  So a drawn token is never
 * tokenized again (token in, token out), and a leaf of the tree is a training sample.
 *
 * Linear sessions (Miles' v1) have one path: a request that repeats less than the whole
 * path discards at most one answer.  In trees (v2) it begins a branch.
 *
 * thread: the event loop's for the table and its sessions.  ml_session_attach and
 * ml_session_commit may run on the text thread: a lock guards the tree.  The content of a
 * node does not change; nodes live as long as their session. */
#ifndef ML_SERVE_SESSION_H
#define ML_SERVE_SESSION_H

#include <pthread.h>

#include "serve/json_tree.h"
#include "serve/output_queue.h"
#include "serve/sampling_params.h"

#define ML_SESSION_ID 33 /* 128 random bits in hexadecimal digits, and the NUL */

typedef enum ml_message_matcher {
    ML_MATCH_STRICT,
    ML_MATCH_LOOSE_TOOL_CALL,   /* arguments that are equal as JSON are equal */
    ML_MATCH_ROLE_CONTENT_ONLY, /* neither reasoning nor tool calls are compared */
    ML_MATCH_FUNCTION,          /* a function of the user's decides */
} ml_message_matcher;

/* How many messages of two lists, from their first, are the same: the recorded ones from
 * `stored` on, the sent ones from `sent` on. */
typedef ml_status (*ml_match_fn)(const ml_json *stored, const ml_json *sent, int32_t *n,
                                 ml_err *err);

typedef enum ml_session_kind { ML_SESSION_LINEAR, ML_SESSION_TREE } ml_session_kind;

typedef struct ml_session_opts {
    bool on;
    ml_session_kind kind;
    ml_message_matcher matcher;
    ml_match_fn match;     /* of ML_MATCH_FUNCTION */
    const ml_json *kwargs; /* of the chat template, an object; NULL: none */
    const char *roles;     /* that a request may append, separated by spaces */
} ml_session_opts;

/* The matcher of this name; ML_MATCH_FUNCTION: it is none of ours. */
ml_message_matcher ml_message_matcher_find(const char *name);

/* kind: 1 + ml_session_kind, 0: none.  matcher: a name, or that of a function, which is
 * `match`.  family: --tito-model.  kwargs: JSON of further template options, or NULL; an option
 * that contradicts the family's is an error. */
ml_status ml_session_opts_make(ml_session_opts *out, ml_arena *a, int kind,
                               const char *matcher, ml_match_fn match, const char *family,
                               const char *kwargs, ml_err *err);

typedef struct ml_session_node {
    ml_arena arena; /* of the node and what it points to */
    struct ml_session_node *parent, *next;
    int32_t seq; /* in the order of commits */
    int32_t n_child;
    const ml_json *raw, *normal; /* the messages it added, as sent and for templates */
    const ml_json *tools;        /* NULL: none */
    int32_t n_message;           /* of the path */
    int32_t keep;                /* tokens of the parent that it continues */
    int32_t n_prompt, n_token;   /* of the path: before the answer, with it */
    const int32_t *token;        /* [n_token - keep] */
    const float *logprob;        /* [n_token - n_prompt] */
    const int64_t *version;      /* [n_token - n_prompt] */
    ml_finish finish;
    int32_t n_cached;
    double time; /* Unix time */
    char id[40]; /* of the reply */
    /* while a request is attached: whether it repeats the path, and its other messages */
    bool passed;
    const ml_json *raw_left, *normal_left;
} ml_session_node;

typedef struct ml_session {
    char id[ML_SESSION_ID];
    ml_arena arena;
    const ml_session_opts *opts;
    struct ml_session_table *table; /* NULL: deleted */
    struct ml_session *prev, *next;
    int32_t n_ref; /* of the table and of requests */
    ml_str owner;  /* a new session of the same owner replaces this one; may be empty */
    bool has_seed;
    uint64_t seed;
    const ml_sampling_params *sampling; /* of all its requests; NULL: the requests' own */
    double used_s;                      /* clock of the last request */
    int32_t n_busy;                     /* requests in flight */
    pthread_mutex_t lock;               /* guards the rest */
    ml_session_node *first, *last;
    ml_session_node *head; /* the latest node; linear: the end of the path */
    int32_t n_node;
    uint64_t n_request; /* answers that were begun */
    uint64_t n_change;  /* commits and rollbacks */
    int64_t n_lost;     /* answers that were not recorded: the path had changed */
} ml_session;

typedef struct ml_session_table ml_session_table;

ml_session_table *ml_session_table_new(const ml_session_opts *opts);
void ml_session_table_free(ml_session_table *t); /* NULL is allowed */
const ml_session_opts *ml_session_table_opts(const ml_session_table *t);
int64_t ml_session_table_count(const ml_session_table *t);

/* A new session with a random id; its arena holds what the caller adds.  Sessions that had
 * no request for ML_SESSION_IDLE_S are freed.  ML_EAGAIN: there are too many. */
#define ML_SESSION_IDLE_S 7200.0
#define ML_SESSION_MAX 65536
ml_status ml_session_open(ml_session **out, ml_session_table *t, ml_str owner, ml_err *err);
ml_session *ml_session_find(ml_session_table *t, ml_str id); /* NULL: none */
void ml_session_delete(ml_session *s); /* requests in flight keep it alive */
void ml_session_use(ml_session *s);    /* begin and end of a request */
void ml_session_leave(ml_session *s);

/* --- requests ----------------------------------------------------------------------- */

/* A request's place in its session, from its prompt to its answer. */
typedef struct ml_session_turn {
    const ml_json *raw, *normal; /* all messages of the request */
    ml_session_node *parent;     /* NULL: none */
    int32_t n_matched;           /* messages of the path to the parent */
    uint64_t n_change;           /* of the session, when it was attached */
    uint64_t seed;               /* of the answer, if the session has one */
    int32_t keep;                /* as in the node */
    ml_session_node *node;       /* being built; freed by ml_session_turn_release */
} ml_session_turn;

/* Finds the parent.  ML_EUSAGE: a linear session would discard more than one answer, or an
 * answer that was cut off would be continued in a tree. */
ml_status ml_session_attach(ml_session *s, ml_session_turn *t, ml_err *err);

/* Makes the node of a finished answer; `message` is the assistant's, JSON text. */
ml_status ml_session_turn_end(ml_session_turn *t, const ml_json *tools, ml_str message,
                              const int32_t *prompt, int32_t n_prompt,
                              const ml_scored *answer, ml_finish finish, ml_err *err);
/* Adds the node to the session.  False: a linear session has changed meanwhile, or the
 * tree is full (ML_SESSION_NODES); the answer is not recorded. */
#define ML_SESSION_NODES 1024
bool ml_session_commit(ml_session *s, ml_session_turn *t);
void ml_session_turn_release(ml_session_turn *t);

/* Whether two messages are the same, each as sent and for templates. */
bool ml_session_same_message(ml_message_matcher m, const ml_json *raw_a,
                             const ml_json *normal_a, const ml_json *raw_b,
                             const ml_json *normal_b);

/* --- paths --------------------------------------------------------------------------- */

/* Copies the tokens of the path to *out [n->n_token]. */
void ml_session_path_tokens(const ml_session_node *n, int32_t *out);
/* Appends the messages of the path to an array, for templates or as sent. */
void ml_session_path_messages(const ml_session_node *n, bool raw, ml_json_list *list);

#endif
