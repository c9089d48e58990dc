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

/* The chains that get a further draft token, and where their rows are in the batch. */
typedef struct ml_draft_turn {
    int32_t n;
    ml_draw *draw;  /* [n] */
    int32_t n_draw; /* of the first chains, begun and not awaited */
    ml_chain *of;   /* [n] */
    int32_t *row;   /* [n] its row */
    int32_t *loss;  /* [n] its row of logits */
    int32_t *wants; /* [n] draft tokens that it gets in all */
} ml_draft_turn;

typedef struct ml_draft_net {
    bool on;
    ml_spec spec;
    ml_weights weights;
    ml_plan *plan;
    ml_plan *own_plan; /* of an EAGLE-3 head: of rows that read its own hidden states */
    ml_plan *keys;     /* of a module: its part that writes keys and values */
    ml_plan *latest;   /* the first two: the one that ran last */
    ml_plan_memory memory;
    ml_batch batch;
    ml_kv kv;
    ml_draft_turn turn[2];
    int32_t *id, *target; /* [rows of a batch] */
    int32_t *top_id;      /* [sequences, topk] of trees: the most probable first drafts */
    float *top_logprob;
    ml_draft_vocab vocab; /* of an EAGLE-3 head; zeros: the model's */
    ml_draw_opts *opts;   /* [sequences] with one: what its draws read of the requests' */
    ml_buf drawn;         /* [sequences] the draws of the last turn, on the device */
    ml_buf hidden;        /* [sequences, hidden] the module's output of its rows */
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

/* For a step after which no request drafts, since there are too many: computes its rows
 * without waiting for the draws, so that drafts are as good as ever once there are fewer.  A
 * module reads the draws: it follows the sampler; a model precedes it. */
void ml_draft_net_follow(struct ml_engine *e);

#endif
