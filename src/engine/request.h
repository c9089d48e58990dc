/* request.h - one sequence being generated: its parameters and its progress.
 *
 * ml_request_new allocates all memory a request will need, so steps allocate none.  The
 * tokens are prompt, then answer.  Keys and values of the first n_kv tokens are in its KV
 * pages; the next steps compute the rest.  Preemption frees the pages and sets n_kv to 0.
 *
 * thread: created on any thread, then owned by the engine's thread. */
#ifndef ML_ENGINE_REQUEST_H
#define ML_ENGINE_REQUEST_H

#include "engine/engine.h"
#include "text/tokenizer/detok.h"

/* Results of scored tokens; the writable form of ml_scored. */
typedef struct ml_scores {
    float *logprob, *entropy;
    uint64_t *version;
    int32_t *top_id;
    float *top_logprob, *also_logprob;
    float *support_logprob;
    uint8_t *support; /* [room for each] the bytes of a support, or of its record */
    size_t support_room;
} ml_scores;

/* A further chain of draft tokens after a request's own (draft_tree.h). */
typedef struct ml_branch {
    int32_t *token;  /* [cap] the request's tokens, then the drafts */
    int32_t n_draft; /* 0: the branch is not in use */
    int32_t *page;   /* [ml_kv_pages_for(cap)] */
    int32_t n_own;   /* pages that are not the request's, the last ones of n_page */
    int32_t n_page;
} ml_branch;

typedef struct ml_request {
    struct ml_request *prev, *next; /* of the list that contains it */
    uint64_t ticket;
    uint64_t arrival; /* order of arrival; younger is larger */
    ml_gen_fn *fn;
    void *ud;

    ml_gen_request params; /* its arrays are owned by this request */
    int32_t *end_id;       /* tokens that end the answer */
    int32_t n_end;
    ml_detok *detok; /* for stop strings, or NULL */
    ml_stops stops;
    ml_text piece, kept; /* text of a token; the part that cannot be a stop string */
    ml_matcher *matcher; /* of its grammar, or NULL */
    uint32_t *mask;      /* [ml_mask_words(n_vocab)] the tokens that it allows next */
    char unmatched[200]; /* why no token does; empty otherwise */

    int32_t *token; /* [cap] */
    int32_t n_token, cap;
    int32_t n_kv;

    int32_t group; /* DP group that has its pages (data-parallel attention), or 0 */
    int32_t *page; /* [ml_kv_pages_for(cap)] of the group */
    int32_t n_page;
    int32_t n_shared; /* leading pages that are in the prefix cache */
    int32_t slot;     /* state after the first n_kv tokens, or ML_NO_SLOT */
    bool mixed;       /* some keys are of older weights: its pages are not shared */

    int32_t prompt_from;      /* first scored prompt token; n_prompt: none */
    int32_t n_prompt_scored;  /* prompt tokens scored so far */
    bool prompt_reported;     /* their scores were reported */
    ml_scores prompt, answer; /* [n_prompt - prompt_from]; [1 + drafts], the latest */

    uint64_t prompt_hash; /* of its prompt */
    int32_t n_draft;      /* tokens after its own in `token`: drafts of a network */
    ml_branch *branch;    /* [n_branch] */
    int32_t n_branch;     /* chains besides that in `token`, in use or not */
    int32_t draft_len; /* draft tokens of its next step, by the success of the last ones */
    float draft_hits,
        draft_tries;      /* right and verified draft tokens; older ones count less */
    int32_t draft_misses; /* steps in a row without a right one */
    int32_t draft_pause;  /* steps until it drafts again */

    int32_t n_cached, n_preempt;
    double submitted_s, queued_s; /* queued_s < 0: not begun */
} ml_request;

/* ML_EUSAGE: one of the n ids is not in the vocabulary; `what` names them in the error. */
ml_status ml_request_check_ids(const char *what, const int32_t *id, int32_t n,
                               int64_t n_vocab, ml_err *err);

/* Validates and copies a request. */
ml_status ml_request_new(ml_request **out, const ml_engine_opts *opts, int64_t n_vocab,
                         const ml_gen_request *r, ml_err *err);
void ml_request_free(ml_request *r); /* NULL is allowed */

/* Computes the mask for the next token.  True: the answer can only end. */
bool ml_request_mask(ml_request *r);

/* Appends a drawn token; returns whether it ends the answer and sets *matched as in
 * ml_gen_update. */
ml_finish ml_request_push(ml_request *r, int32_t id, int32_t *matched);

/* An intrusive doubly linked list. */
typedef struct ml_request_list {
    ml_request *first, *last;
    int32_t n;
} ml_request_list;

void ml_list_remove(ml_request_list *l, ml_request *r);
/* Inserts in the order of arrival. */
void ml_list_insert(ml_request_list *l, ml_request *r);
ml_request *ml_list_find(const ml_request_list *l, uint64_t ticket);

#endif
