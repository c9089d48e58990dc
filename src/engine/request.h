/* request.h - one sequence being generated: what was asked, what is known so far.
 *
 * All memory a request will need is taken when it is made, so that steps take none.
 * Its tokens are prompt, then answer; keys and values of the first n_kv are in its
 * pages, the rest is what the next steps compute.  A request that has its pages taken
 * away only sets n_kv to 0.
 *
 * thread: made on any thread, then the engine's. */
#ifndef ML_ENGINE_REQUEST_H
#define ML_ENGINE_REQUEST_H

#include "engine/engine.h"
#include "text/detok.h"

/* Results for tokens that were scored, writable. */
typedef struct ml_scores {
    float *logprob, *entropy;
    uint64_t *version;
    int32_t *top_id;
    float *top_logprob, *also_logprob;
} ml_scores;

typedef struct ml_request {
    struct ml_request *prev, *next; /* of the list it stands in */
    uint64_t ticket;
    uint64_t arrival; /* order of admission; younger is larger */
    ml_gen_fn *fn;
    void *ud;

    ml_gen_request ask; /* its arrays are this request's own */
    int32_t *end_id;    /* tokens that end the answer */
    int32_t n_end;
    ml_detok *detok; /* for stop strings, or NULL */
    ml_stops stops;
    ml_text piece, kept; /* text of a token, and what of it cannot be a stop string */

    int32_t *token; /* [cap] */
    int32_t n_token, cap;
    int32_t n_kv;

    int32_t *page; /* [ml_kv_pages_for(cap)] */
    int32_t n_page;
    int32_t n_shared; /* the first ones, in the tree */
    int32_t slot;     /* of the state behind the first n_kv tokens, or ML_NO_SLOT */
    bool mixed;       /* some keys are of older weights: its pages are nobody else's */

    int32_t prompt_from;      /* first scored prompt token; n_prompt: none */
    int32_t n_prompt_scored;  /* of them, so far */
    bool prompt_told;         /* their scores were handed out */
    ml_scores prompt, answer; /* [n_prompt - prompt_from]; one */

    int32_t n_cached, n_preempt;
    double submitted_s, queued_s; /* queued_s < 0: not begun */
} ml_request;

/* ML_EUSAGE: one of n ids is no token of the model; `what` names them. */
ml_status ml_request_check_ids(const char *what, const int32_t *id, int32_t n,
                               int64_t n_vocab, ml_err *err);

/* Checks and copies. */
ml_status ml_request_new(ml_request **out, const ml_engine_opts *opts, int64_t n_vocab,
                         const ml_gen_request *r, ml_err *err);
void ml_request_free(ml_request *r); /* NULL is fine */

/* Appends a drawn token and says whether it ends the answer, and by what it was matched. */
ml_finish ml_request_push(ml_request *r, int32_t id, int32_t *matched);

/* A list with its ends. */
typedef struct ml_request_list {
    ml_request *first, *last;
    int32_t n;
} ml_request_list;

void ml_list_remove(ml_request_list *l, ml_request *r);
/* Keeps the list in the order of arrival. */
void ml_list_insert(ml_request_list *l, ml_request *r);
ml_request *ml_list_find(const ml_request_list *l, uint64_t ticket);

#endif
