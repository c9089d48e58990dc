/* engine.h - the rollout engine: requests in, tokens out, one step loop.
 *
 * A step is one forward pass over a ragged batch: one row of each request that is
 * decoding, and chunks of prompts as far as the budget goes.  Keys and values live in
 * pages of a pool; pages of equal prefixes are shared through a tree.  When pages run
 * out the youngest request gives its own back and is computed anew later, from all
 * the tokens it has.
 *
 * None of this shows in the tokens: a token and its log-probability are functions of
 * the tokens before it, the weights and the request alone.
 *
 * thread: one owner; engine/local.h puts it on a thread behind ml_gen. */
#ifndef ML_ENGINE_ENGINE_H
#define ML_ENGINE_ENGINE_H

#include "engine/gen.h"
#include "model/plan.h"
#include "text/tokenizer.h"

typedef struct ml_engine ml_engine;
struct ml_request; /* engine/request.h */

typedef struct ml_engine_opts {
    int32_t context;     /* tokens of prompt and answer together */
    int32_t max_running; /* requests in a batch */
    int32_t max_waiting; /* further ones that may queue */
    int32_t chunk;       /* rows of a step's prefill */
    int32_t max_top;     /* the largest n_top + n_also of a request */
    size_t kv_bytes;     /* of pages; 0: as much as all running requests could use */
    bool no_prefix_cache;
    bool no_overlap;           /* each step waits for the draws of the one before */
    int32_t record_rows;       /* as in ml_plan_opts */
    ml_timeline *spans;        /* who is told when ops ran; NULL: nobody */
    ml_plan_dump *dump;        /* where all that steps compute is written; NULL: nowhere */
    bool routed[ML_N_ROUTING]; /* what the model chooses is kept for those who ask */
    const int32_t *eos;        /* the model's end tokens */
    int32_t n_eos;
    const ml_tokenizer *tokenizer; /* for stop strings; may be NULL */
} ml_engine_opts;

/* What an engine will take, before it is made. */
typedef struct ml_engine_memory {
    size_t kv, act, scratch, requests;
    size_t routes; /* what the model chose, kept beside the pages */
    int32_t n_page;
} ml_engine_memory;

/* Bytes of the slots such an engine has besides its pages: 0 without recurrent layers. */
size_t ml_engine_slot_bytes(const ml_spec *s, const ml_backend *be, int32_t max_running,
                            bool no_prefix_cache);

ml_status ml_engine_measure(ml_engine_memory *out, const ml_spec *s, ml_backend *be,
                            const ml_engine_opts *opts, ml_err *err);

/* spec, weights, backend and tokenizer stay the caller's. */
ml_status ml_engine_open(ml_engine **out, const ml_spec *s, const ml_weights *w,
                         ml_backend *be, const ml_engine_opts *opts, ml_err *err);
void ml_engine_close(ml_engine *e); /* NULL is fine; requests end without a last call */

ml_status ml_engine_submit(ml_engine *e, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                           uint64_t ticket, ml_err *err);
/* The same with a request made elsewhere, its ticket and fn set; the queue has no limit here. */
void ml_engine_add(ml_engine *e, struct ml_request *r);
bool ml_engine_abort(ml_engine *e, uint64_t ticket, const char *why);
void ml_engine_abort_all(ml_engine *e, const char *why);

/* One step; false: there is nothing to do.  Calls the functions of requests that got tokens or
 * ended.  Allocates nothing. */
bool ml_engine_step(ml_engine *e);

/* Between steps.  FINISH: ML_EAGAIN while requests run, and no new ones are admitted until the
 * switch has succeeded. */
ml_status ml_engine_switch(ml_engine *e, const ml_weights *w, ml_switch how);
bool ml_engine_flush(ml_engine *e);

/* Gives the memory of keys and values back, and takes it again.  Requests are retracted. */
void ml_engine_release_kv(ml_engine *e);
ml_status ml_engine_take_kv(ml_engine *e, ml_err *err);

void ml_engine_stats(const ml_engine *e, ml_gen_stats *out);

#endif
