/* gen.h - something that generates: the one interface through which tokens are made.
 *
 * A local engine on a thread of its own (engine/local.h), or servers behind HTTP.  A
 * request goes in with the tokens of a prompt; tokens come out in order through the
 * request's function, each with its log-probability and the version of the weights that
 * made it, then one last call with the reason for the end.
 *
 * thread: all functions may be called from any thread, but not from within an ml_gen_fn,
 * which runs on the generator's own thread and must not block.  From within an
 * ml_step_end_fn, which runs there too, submit and abort may. */
#ifndef ML_ENGINE_GEN_H
#define ML_ENGINE_GEN_H

#include "backend/draw.h"
#include "backend/ops.h"
#include "base/err.h"
#include "base/str.h"

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
        max_new; /* answers have at least and at most so many tokens; the context's
                                 end may come first.  max_new 0: the prompt is scored only */
    const int32_t *stop_id;
    int32_t n_stop_id;
    bool ignore_eos;    /* the model's end tokens are tokens like others */
    const ml_str *stop; /* stop strings; need a tokenizer */
    int32_t n_stop;
    /* Prompt tokens from this index on are scored, as is each token of the answer.  Token 0 is
     * preceded by nothing: its log-probabilities are NaN, its top_id -1.  -1: no prompt token. */
    int32_t score_from;
    int32_t n_top;       /* most probable tokens wanted beside each scored one */
    const int32_t *also; /* ids whose log-probability is wanted beside each scored one */
    int32_t n_also;
    /* What the model chose is wanted, of the tokens from routed_from on; only of generators
     * that keep it. */
    bool routed[ML_N_ROUTING];
    int32_t routed_from;
} ml_gen_request;

/* Scored tokens, as arrays over them. */
typedef struct ml_scored {
    int32_t n;
    const int32_t *id;
    const float *logprob, *entropy;
    const uint64_t *version;
    const int32_t *top_id;     /* [n][n_top] */
    const float *top_logprob;  /* [n][n_top] */
    const float *also_logprob; /* [n][n_also] */
} ml_scored;

/* What a model chose for consecutive tokens: all layers' choices of each. */
typedef struct ml_routing {
    const int32_t *row; /* [n][width]; -1: not known */
    int32_t n;
    int64_t width; /* layers times choices of a layer */
} ml_routing;

/* What has come since the last call.  Views are good until the function returns. */
typedef struct ml_gen_update {
    uint64_t ticket;
    ml_scored prompt; /* all of it at once, before or with the first token */
    ml_scored answer;
    ml_finish finish;
    int32_t matched;   /* TOKEN: the id; STRING: the index of the stop string */
    ml_str message;    /* ABORT: why */
    int32_t n_cached;  /* prompt tokens whose keys and values were there already */
    int32_t n_preempt; /* times the request was put back */
    uint64_t version;  /* of the weights in use now */
    double queued_s;   /* from submission until its first step began */
    /* With the end, where asked for.  The last token was never fed to the model: there are rows
     * of all but it. */
    ml_routing routed[ML_N_ROUTING];
} ml_gen_update;

typedef void ml_gen_fn(void *ud, const ml_gen_update *u);

/* What happens to requests in inflight when the weights change. */
typedef enum ml_switch {
    ML_SWITCH_FINISH,    /* they finish on the old weights first; new ones wait */
    ML_SWITCH_RECOMPUTE, /* their keys and values are computed anew from all their tokens */
    ML_SWITCH_ABORT,     /* they end, with the tokens they have */
    ML_SWITCH_INEXACT_KV, /* they go on with keys and values of the old weights */
} ml_switch;

typedef struct ml_gen_stats {
    int64_t n_running, n_waiting;
    int64_t n_page, n_page_free, n_page_cached; /* cached: not in use, may be taken */
    int64_t n_overlapped; /* steps begun before the draws of the one before were known */
    int64_t n_step, n_prompt_token, n_cached_token, n_answer_token, n_preempt;
    int64_t n_finished, n_aborted;
    double step_s, model_s, sample_s; /* inside steps: all, the plan, the sampler */
    uint64_t version;
    bool paused;
    int32_t page_tokens, context, max_running;
} ml_gen_stats;

/* Requests have ended since the last call. */
typedef void ml_step_end_fn(void *ud);

typedef struct ml_gen ml_gen;
struct ml_gen {
    const char *name;
    /* Copies the request.  The ticket is unique in the generator's life; it may be used, and fn
     * be called, before this returns.  ML_EAGAIN: the queue is full.  ML_EUSAGE: what is wrong
     * with the request. */
    ml_status (*submit)(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err);
    /* The request's last call comes with ML_FINISH_ABORT, unless it ended before. */
    void (*abort)(ml_gen *g, uint64_t ticket);
    void (*abort_all)(ml_gen *g);
    /* No step runs between the two; pause returns when the last one has ended. */
    void (*pause)(ml_gen *g);
    void (*resume)(ml_gen *g);
    /* Forgets cached prefixes that nobody uses; false: requests are in inflight, nothing done. */
    bool (*flush)(ml_gen *g);
    /* New weights from a checkpoint's directory; returns when they are in use.  version 0: one
     * more than now. */
    ml_status (*load)(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err);
    void (*stats)(ml_gen *g, ml_gen_stats *out);
    /* Aborts what is left and waits for its last calls. */
    void (*close)(ml_gen *g);
    /* From now on fn is called after each step in which requests ended, before the next one
     * begins; NULL: nobody watches.  So what is decided there depends on steps, never on the
     * clock.  Generators whose steps are elsewhere call it after each end. */
    void (*watch)(ml_gen *g, ml_step_end_fn *fn, void *ud);
};

#endif
