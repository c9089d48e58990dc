/* engine.h - the rollout engine: requests in, tokens out, one step loop.
 *
 * A step is one forward pass over a ragged batch: one row of each request that decodes,
 * and chunks of prompts (chunked prefill) within the step's token budget.  The KV cache is
 * a pool of pages; requests with equal prefixes share pages through the prefix cache.  When
 * pages run out, the scheduler preempts the youngest request: its pages are freed, and its
 * keys and values are recomputed later from all its tokens.
 *
 * Scheduling never changes tokens: a token and its log-probability are functions of the
 * tokens before it, the weights and the request alone.
 *
 * thread: one owner; gen/local.h runs it on a thread of its own, as an ml_gen. */
#ifndef ML_ENGINE_ENGINE_H
#define ML_ENGINE_ENGINE_H

#include "gen/gen.h"
#include "model/plan.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_engine ml_engine;
struct ml_request; /* engine/request.h */

/* Speculative decoding.  Draft tokens are further rows of a step; a row's draw is accepted if
 * the rows before it had the right input: if each draft token is the very token that was
 * drawn in its place.  Tokens and log-probs therefore have the bits of plain decoding,
 * whatever the drafts are.
 *
 * A draft function writes up to n tokens that may follow the request's own, as chain number
 * `chain` of topk, and returns how many.  It must be a function of the engine's state: ranks
 * call it in lock step. */
typedef int32_t ml_draft_fn(void *ud, const struct ml_request *r, int32_t chain,
                            int32_t *out, int32_t n);

enum { ML_DRAFT_CHAINS = 16 }; /* the largest topk */

typedef struct ml_draft_opts {
    int32_t n;    /* most draft tokens of a chain; 0: plain decoding */
    int32_t topk; /* most chains of a request in a step; up to 1: no tree (draft_tree.h) */
    int32_t rows; /* of a tree, besides those of the request's own tokens, at least n */
    int32_t max_rows; /* of a step, with drafts; more cost time.  0: the backend decides */
    /* Where they come from, one of: */
    bool ngram;      /* what followed the same tokens before (ngram.h) */
    const char *mtp; /* the multi-token prediction module of the checkpoint in this
                          directory (draft_net.h) */
    const ml_weights *mtp_weights; /* NULL, or the module's weights, which are read instead
                                      of those of the checkpoint; they change between steps
                                      only */
    const char *eagle3;            /* the EAGLE-3 head in this directory (model/eagle3.h) */
    const char *model; /* the model in this directory, which has the same vocabulary */
    ml_draft_fn *fn;   /* a function */
    void *ud;
    ml_weight_dtype dtype; /* of these weights */
} ml_draft_opts;

/* Whether a network drafts. */
static inline bool ml_draft_has_net(const ml_draft_opts *o) {
    return o->mtp || o->eagle3 || o->model;
}

/* Rows that a request's drafts may have in a step. */
static inline int32_t ml_draft_rows(const ml_draft_opts *o) {
    return o->topk > 1 ? o->rows : o->n;
}

typedef struct ml_engine_opts {
    int32_t context;      /* tokens of prompt and answer together */
    int32_t max_running;  /* requests in a batch */
    int32_t max_waiting;  /* further requests that may queue */
    int32_t chunk;        /* prefill tokens of a step (chunked prefill) */
    int32_t max_adapters; /* in a batch, the base being one; 0: any number */
    int32_t max_top;      /* the largest n_top + n_also of a request */
    size_t kv_bytes;      /* of KV pages; 0: enough for max_running full contexts */
    bool no_prefix_cache;
    bool no_overlap;           /* schedule each step after the draws of the one before */
    int32_t record_rows;       /* as in ml_plan_opts */
    ml_timeline *spans;        /* receives the times of ops, or NULL */
    ml_plan_dump *dump;        /* receives all values that steps compute, or NULL */
    bool routed[ML_N_ROUTING]; /* record the routing, for requests that want it */
    ml_draft_opts draft;
    const int32_t *eos; /* the model's end tokens */
    int32_t n_eos;
    const ml_tokenizer *tokenizer; /* for stop strings; may be NULL */
    ml_grammar_cache *grammars;    /* NULL: requests with a grammar are refused */
    /* NULL, or the group of a spec that is cut for several ranks.  Every rank calls the
     * same functions in the same order, with the same arguments (gen/local.h sees to it). */
    ml_comm *comm;
} ml_engine_opts;

/* Memory that an engine will allocate, in bytes, and the pages of its KV cache. */
typedef struct ml_engine_memory {
    size_t kv, act, scratch, requests;
    size_t routing_record; /* routing records, stored beside the pages */
    int32_t n_page;
} ml_engine_memory;

/* Bytes of the engine's state slots, besides its KV pages; 0 without recurrent layers. */
size_t ml_engine_slot_bytes(const ml_spec *s, const ml_backend *be,
                            const ml_engine_opts *o);

ml_status ml_engine_measure(ml_engine_memory *out, const ml_spec *s, ml_backend *be,
                            const ml_engine_opts *opts, ml_err *err);

/* The caller keeps ownership of spec, weights, backend and tokenizer.  All ranks get as
 * many KV pages as the one with the fewest. */
ml_status ml_engine_open(ml_engine **out, const ml_spec *s, const ml_weights *w,
                         ml_backend *be, const ml_engine_opts *opts, ml_err *err);
void ml_engine_close(ml_engine *e); /* NULL is allowed; requests end without a last call */

ml_status ml_engine_submit(ml_engine *e, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                           uint64_t ticket, ml_err *err);
/* The same for a request from ml_request_new, ticket and fn set; ignores max_waiting. */
void ml_engine_add(ml_engine *e, struct ml_request *r);
bool ml_engine_abort(ml_engine *e, uint64_t ticket, const char *why);
void ml_engine_abort_all(ml_engine *e, const char *why);

/* Runs one step; false: there was nothing to do.  Invokes the callbacks of requests that
 * got tokens or ended.  Allocates nothing, except for masks of grammars. */
bool ml_engine_step(ml_engine *e);

/* Changes the weights, between steps.  FINISH: returns ML_EAGAIN while started requests
 * remain, and admits no new ones until the switch has succeeded. */
ml_status ml_engine_switch(ml_engine *e, const ml_weights *w, ml_switch how);
bool ml_engine_flush(ml_engine *e);

/* Free the memory of the KV cache, preempting running requests, and allocate it again. */
void ml_engine_release_kv(ml_engine *e);
ml_status ml_engine_take_kv(ml_engine *e, ml_err *err);

void ml_engine_stats(const ml_engine *e, ml_gen_stats *out);

/* ML_OK, or why the ranks can no longer work together; all requests were aborted then. */
ml_status ml_engine_check(const ml_engine *e, ml_err *err);
/* A hash of running requests, their pages and tokens: ranks in lock step have the same. */
uint64_t ml_engine_hash(const ml_engine *e);
/* The least n of all ranks; comm NULL: n. */
ml_status ml_engine_least(ml_comm *comm, int64_t *n, ml_err *err);

#endif
