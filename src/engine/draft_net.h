/* draft_net.h - draft tokens that a second network draws: the model's multi-token prediction
 * module (model/mtp.h), an EAGLE-3 head (model/eagle3.h), or a small model with the same
 * vocabulary.
 *
 * After each step it computes the rows that the step added to requests, in KV pages with the
 * numbers of the requests' own pages, and then draws draft tokens one by one.  A draft is
 * drawn with the random number of its position and the request's sampling parameters, so
 * that it is the token that follows whenever the two networks have the same distribution.
 * The further branches of a tree begin with the most probable other tokens, and go on alike.
 * Pages that requests share may hold keys for the token after another request's page; this
 * costs accepted tokens, never exactness.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_DRAFT_NET_H
#define ML_ENGINE_DRAFT_NET_H

#include "engine/draft_tree.h"
#include "model/eagle3.h"

struct ml_engine;
struct ml_inflight_step;

typedef struct ml_draft_net {
    bool on;
    ml_spec spec;
    ml_weights weights;
    ml_plan *plan;
    ml_plan *own_plan; /* of an EAGLE-3 head: of rows that read its own hidden states */
    ml_plan *latest;   /* the one of both that ran last */
    ml_batch batch;
    ml_kv kv;
    ml_draw *draw;   /* [sequences] */
    ml_chain *of;    /* [sequences] the chains that draft */
    int32_t *last;   /* [sequences] the last row of each in the batch */
    int32_t *wants;  /* [sequences] draft tokens that it gets */
    int32_t *target; /* [rows of a batch] */
    int32_t *drawn;  /* [sequences] */
    int32_t *top_id; /* [sequences, topk] of trees: the most probable first drafts */
    float *top_logprob;
    ml_draft_vocab vocab; /* of an EAGLE-3 head; zeros: the model's */
    float *logits;        /* with one: [sequences, n_vocab of the model] */
    void *hidden;         /* [sequences, hidden] the module's output of these rows */
    ml_arena arena, kv_arena;
} ml_draft_net;

/* Lets a plan of the model keep what the network of o reads. */
ml_status ml_draft_net_keep(ml_plan_opts *plan, const ml_draft_opts *o, const ml_spec *s,
                            ml_err *err);

/* Bytes of the network of o->draft: weights, KV pages, activations; 0 without one.  s and
 * n_page are the engine's. */
ml_status ml_draft_net_measure(size_t *out, const ml_spec *s, ml_backend *be,
                               const ml_engine_opts *o, int32_t n_page, ml_err *err);

/* Opens the network of opts.draft; the engine has its plan and batch. */
ml_status ml_draft_net_open(struct ml_engine *e, ml_err *err);
void ml_draft_net_close(ml_draft_net *d); /* zero-initialized is allowed */

/* The memory of its keys and values goes with the engine's. */
ml_status ml_draft_net_take_kv(struct ml_engine *e, ml_err *err);
void ml_draft_net_release_kv(ml_draft_net *d);

/* After the outputs of a step: draft tokens for its requests' next step. */
void ml_draft_net_run(struct ml_engine *e, const struct ml_inflight_step *f);

#endif
