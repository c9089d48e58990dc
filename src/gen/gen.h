/* gen.h - the generator: the one interface through which all tokens are generated.
 *
 * Implementations: a local engine on a thread of its own (gen/local.h) and HTTP servers
 * (gen/remote.h).  A request holds the tokens of a prompt.  The generator passes new
 * tokens in order to the request's callback, each with its log-probability and the version
 * of the weights that drew it; the last call has the reason for the end.
 *
 * thread: all functions may be called from any thread, but not from within an ml_gen_fn,
 * which runs on the generator's own thread and must not block.  An ml_step_end_fn runs on
 * that thread too, and may call submit and abort. */
#ifndef ML_GEN_GEN_H
#define ML_GEN_GEN_H

#include "backend/draw.h"
#include "backend/ops.h"
#include "base/err.h"
#include "base/str.h"
#include "text/grammar/grammar.h"

typedef enum ml_finish {
    ML_FINISH_NOT,    /* more will come */
    ML_FINISH_TOKEN,  /* an end token: of the model, or one of stop_id */
    ML_FINISH_STRING, /* one of the stop strings */
    ML_FINISH_LENGTH, /* max_new reached, or the context is full */
    ML_FINISH_ABORT,
} ml_finish;

typedef struct ml_gen_request {
    const int32_t *prompt;
    int32_t n_prompt; /* at least 1 */
    ml_draw_opts draw;
    int32_t min_new,
        max_new; /* limits of the answer's tokens; the context may end it earlier.
                                 max_new 0: the prompt is scored only */
    const int32_t *stop_id;
    int32_t n_stop_id;
    bool ignore_eos;    /* the model's end tokens do not end the answer */
    const ml_str *stop; /* stop strings; need a tokenizer */
    int32_t n_stop;
    /* The answer's text is one of this grammar; needs a tokenizer.  End tokens are drawn
     * where the text is complete, also those of the model with ignore_eos. */
    ml_grammar_source grammar;
    /* Prompt tokens from this index on are scored (-1: none), as is each answer token.
     * Token 0 has no context: its log-probabilities are NaN, its top_id -1. */
    int32_t score_from;
    int32_t n_top;       /* top-n log-probs to return for each scored token */
    const int32_t *also; /* further ids whose log-prob to return for each scored token */
    int32_t n_also;
    /* also is [scored prompt tokens][n_also], ids of each token's own; -1: none, whose
     * log-prob is NaN.  Only with max_new 0. */
    bool also_each;
    bool support; /* return the sampling supports of the answer's tokens */
    /* Return the routing record of the tokens from routed_from on; the generator must have
     * recording enabled. */
    bool routed[ML_N_ROUTING];
    int32_t routed_from;
    /* The adapter: 1 + its index in ml_weights.lora; 0: none, or the one being trained.
     * adapter_id: a number that no other adapter ever has, by which the prefix cache tells
     * them apart; 0: none. */
    int32_t adapter, adapter_id;
} ml_gen_request;

/* Scored tokens, as a struct of arrays. */
typedef struct ml_scored {
    int32_t n;
    const int32_t *id;
    const float *logprob, *entropy;
    const uint64_t *version;
    const int32_t *top_id;     /* [n][n_top] */
    const float *top_logprob;  /* [n][n_top] */
    const float *also_logprob; /* [n][n_also] */
    /* Of an answer, if requested: n records of supports (support.h), and the log-probs over
     * them. */
    ml_str supports;
    const float *support_logprob;
} ml_scored;

/* Routing record of consecutive tokens: the selections of all layers for each. */
typedef struct ml_routing {
    const int32_t *row; /* [n][width]; -1: not known */
    int32_t n;
    int64_t width; /* layers * top_k */
} ml_routing;

/* Outputs since the last call.  Pointers are valid until the callback returns. */
typedef struct ml_gen_update {
    uint64_t ticket;
    ml_scored prompt; /* all at once, before or with the first token */
    ml_scored answer;
    ml_finish finish;
    int32_t matched;   /* TOKEN: the id; STRING: the index of the stop string */
    ml_str message;    /* ABORT: why */
    int32_t n_cached;  /* prompt tokens found in the prefix cache */
    int32_t n_preempt; /* times the request was preempted */
    uint64_t version;  /* of the weights in use now */
    double queued_s;   /* from submission until its first step began */
    /* With the last call, if requested.  The last token was never an input of the model,
     * so it has no row. */
    ml_routing routed[ML_N_ROUTING];
} ml_gen_update;

typedef void ml_gen_fn(void *ud, const ml_gen_update *u);

/* How requests in flight are treated when the weights change. */
typedef enum ml_switch {
    ML_SWITCH_FINISH,     /* they finish on the old weights first; new ones wait */
    ML_SWITCH_RECOMPUTE,  /* their KV cache is recomputed from all their tokens */
    ML_SWITCH_ABORT,      /* they end, with the tokens they have */
    ML_SWITCH_INEXACT_KV, /* they continue with the old weights' KV cache */
} ml_switch;

typedef struct ml_gen_stats {
    int64_t n_running, n_waiting;
    int64_t n_page, n_page_free, n_page_cached; /* cached: unused, may be evicted */
    int64_t n_overlapped; /* steps launched before the previous draws were known */
    int64_t n_step, n_prompt_token, n_cached_token, n_answer_token, n_preempt;
    int64_t n_finished, n_aborted;
    int64_t n_verify, n_draft, n_accepted; /* speculative decoding: draws of requests with
                                              or without draft tokens; these; right ones */
    int64_t n_branched; /* steps of requests whose right draft tokens were a branch's */
    double step_s, model_s, sample_s; /* in steps: total, model forward, sampling */
    uint64_t version;
    bool paused;
    int32_t page_tokens, context, max_running;
} ml_gen_stats;

/* Called when requests have ended since the last call, or after ml_gen.notify. */
typedef void ml_step_end_fn(void *ud);

typedef struct ml_gen ml_gen;
struct ml_gen {
    const char *name;
    /* Copies the request.  The ticket is unique over the generator's lifetime; fn may be
     * called with it before this returns.  ML_EAGAIN: the queue is full.  ML_EUSAGE: the
     * request is invalid; err has the reason. */
    ml_status (*submit)(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err);
    /* The request's last call comes with ML_FINISH_ABORT, unless it ended before. */
    void (*abort)(ml_gen *g, uint64_t ticket);
    void (*abort_all)(ml_gen *g);
    /* No step runs between pause and resume; pause waits for the running step. */
    void (*pause)(ml_gen *g);
    void (*resume)(ml_gen *g);
    /* Evicts all of the prefix cache; false: requests are in flight, nothing was done. */
    bool (*flush)(ml_gen *g);
    /* Loads weights from a checkpoint directory; returns when they are in use.
     * version 0: the current version + 1. */
    ml_status (*load)(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err);
    void (*stats)(ml_gen *g, ml_gen_stats *out);
    /* Aborts the remaining requests and waits for their last calls. */
    void (*close)(ml_gen *g);
    /* Sets the callback for the end of steps in which requests ended; it runs before the
     * next step begins, so decisions made in it depend on steps, never on the clock.
     * NULL removes it.  Remote generators call it after each request's end. */
    void (*on_step_end)(ml_gen *g, ml_step_end_fn *fn, void *ud);
    /* Makes the callback run once more, at the end of a step or, if no request is running,
     * at once; while paused, after resume.  Does not wait for it. */
    void (*notify)(ml_gen *g);
};

#endif
