/* trainer.h - trains a model: scores samples and takes optimizer steps on a loss.
 *
 * A step runs the samples through a plan, micro-batch by micro-batch, passes each one's
 * log-probs and entropies to the loss, propagates the derivatives back into one set of
 * f32 gradients, and calls the optimizer.  Scoring and generation use the same forward,
 * so for the same weights the log-probs are bit-identical in any packing.  Each weight's
 * gradient is a sum over tokens in a fixed order: splitting the same order of samples
 * into other micro-batches does not change it.
 *
 * Several ranks train together if they pass a mesh: every rank has all samples, computes
 * those of its data place (mesh.h), and updates the weights that it owns.  Open, score, accumulate and step are collective: all ranks call them with
 * the same samples and in the same order.  Log-probs, entropies, loss and gradient norm of
 * the same gradients have the same bits for any number of ranks; gradients of all ranks
 * are added in the order of ML_REDUCE_TREE.  A rank that fails makes the others fail, too.
 *
 * The caller owns the weights (an engine may read the same set between steps); the
 * trainer owns gradients, optimizer state and plans.
 *
 * thread: one owner, on the backend's stream. */
#ifndef ML_TRAIN_TRAINER_H
#define ML_TRAIN_TRAINER_H

#include "base/work_count.h"
#include "model/lora.h"
#include "model/plan.h"
#include "train/lr.h"
#include "train/micro.h"
#include "train/mtp_trainer.h"
#include "train/optimizer.h"

typedef struct ml_trainer ml_trainer;

/* The part of each parameter that a rank of a mesh has in memory, [n_param] in the arena;
 * NULL: all of them. */
const ml_shard_range *ml_trainer_parts(ml_arena *a, const ml_spec *s, const ml_mesh *mesh,
                                       const int32_t *stage, ml_layout linear);

/* What a trainer is for.  One without steps has no optimizer state; one that only scores has
 * no gradients either. */
typedef enum ml_trainer_use {
    ML_TRAINER_STEPS,
    ML_TRAINER_GRADS, /* ml_trainer_accumulate */
    ML_TRAINER_SCORES
} ml_trainer_use;

typedef struct ml_trainer_opts {
    ml_trainer_use use;
    ml_optimizer_opts optimizer;
    ml_lr_opts lr;
    double temperature;       /* logits are divided by it; 0: 1 */
    ml_schedule_opts batch;   /* how samples are packed into micro-batches */
    int64_t score_max_tokens; /* of a micro-batch that is only scored; 0: as in batch */
    /* What plans are built for from the first, so that the memory is that of the memory plan
     * and does not grow later; zeros: for the batches that come. */
    ml_batch_caps train_caps, score_caps;
    bool score_logits; /* see ml_trainer_score_logits */
    ml_recompute recompute;
    bool keep_logits;  /* from forward to backward: faster, but needs vocab-size memory
                          per loss row */
    int32_t loss_rows; /* rows whose logits are computed at a time; 0: the backend's
                          choice */
    ml_grad_format grad_format; /* of linear layers */
    /* Dumps of intermediate results, for scoring and training; NULL: none. */
    ml_plan_dump *dump_score, *dump_train;
    ml_timeline *spans_score, *spans_train; /* record when ops ran; NULL: none */
    bool replay[ML_N_ROUTING]; /* samples may carry routing records to replay, and have
                                  them recorded */
    bool stop_on_bad;          /* a non-finite loss or gradient is an error */
    /* The ranks that train together, NULL: one; and the pipeline stage of each node, NULL:
     * one stage.  They set batch.n_rank and those of the optimizer, and outlive the
     * trainer. */
    const ml_mesh *mesh;
    const int32_t *stage;
    /* NULL, or the adapter on top of the weights (ml_weights.lora): it alone is trained, and
     * the weights have no gradients and no optimizer state.  Outlives the trainer. */
    ml_lora *lora;
    /* NULL, or the weights whose quantized copy (ml_weights_quantize) the trainer reads: they
     * are trained with the gradients of the copy (straight-through), which follows them after
     * each step.  Outlive the trainer. */
    ml_weights *trained;
    /* NULL, or the multi-token prediction module that steps train, too.  Not with ranks that
     * divide layers or rows.  Outlives the trainer. */
    ml_mtp_trainer *mtp;
    bool
        dropout; /* train steps drop inputs of the adapter: LORA ops have the probability */
    uint64_t dropout_seed;
    /* Gradients are sums of as many parts of a step, a power of two, in a binary tree: each
     * data place has as many of them, so that the sum does not depend on the number of
     * ranks, which divides it.  Not with other directions than data and pipeline parallel.
     * 0: a part for each data place. */
    int32_t grad_shards;
    bool share_prefixes; /* samples share the rows of equal prefixes (prefix.h) */
    bool contiguous;  /* context parallel: one piece of a micro-batch instead of zigzag */
    bool whole_grads; /* ranks get all gradients of their part, for inspection; false: each
                         has the sums of its own ranges only */
} ml_trainer_opts;

/* spec, weights and backend must outlive it.  The weights of a rank are its part
 * (ml_trainer_parts). */
ml_status ml_trainer_open(ml_trainer **out, const ml_spec *s, ml_weights *w, ml_backend *be,
                          const ml_trainer_opts *opts, ml_err *err);
void ml_trainer_close(ml_trainer *t); /* NULL is allowed */

/* Release frees all memory that only training needs; take allocates it again.  Only close
 * may be called in between.  The training state is preserved. */
ml_status ml_trainer_release(ml_trainer *t, ml_err *err);
ml_status ml_trainer_take(ml_trainer *t, ml_err *err);

/* Frees the memory of activations until the next step or scoring. */
void ml_trainer_rest(ml_trainer *t);

/* Exchanges the plans of two trainers of one spec, backend and options: trainers that run in
 * turn, each with an adapter of its own, need the memory of one.  Not with ranks. */
void ml_trainer_swap_plans(ml_trainer *a, ml_trainer *b);

/* The steps and micro-batches of these samples, in the arena.  Idle samples get separate
 * micro-batches, so that only their forward pass runs. */
ml_status ml_trainer_schedule(ml_schedule *out, const ml_trainer *t, ml_arena *a,
                              const ml_train_sample *s, int32_t n, ml_err *err);

/* Log-probs and entropies of all response tokens, including masked ones, under the
 * weights w (of the same spec, without routing replay; NULL: the trainer's own).
 * logprob[i] and entropy[i] are [n_response] of sample i; entropy may be NULL.  A critic
 * (its spec is one) returns values. */
ml_status ml_trainer_score(ml_trainer *t, const ml_weights *w, const ml_train_sample *s,
                           int32_t n, float *const *logprob, float *const *entropy,
                           ml_err *err);

/* The same with the trainer's own weights and the logits of the rows that predict response
 * tokens: logits[i] is [n_response, vocab].  It needs opts.score_logits. */
ml_status ml_trainer_score_logits(ml_trainer *t, const ml_train_sample *s, int32_t n,
                                  float *const *logprob, float *const *entropy,
                                  float *const *logits, ml_err *err);

/* The loss of the samples of one micro-batch: term and derivatives of each.  The result
 * for a sample may depend only on that sample and on data known before the step. */
typedef ml_status ml_loss_fn(void *ud, ml_loss_io *io, int32_t n_sample, ml_err *err);

/* What a step does differently; the same on all ranks. */
typedef struct ml_step_changes {
    double lr, weight_decay; /* instead of those of the schedule */
    ml_grad_rules rules;
} ml_step_changes;

typedef struct ml_step {
    const ml_train_sample *sample; /* the array that bins index */
    const ml_bins *micro;          /* this rank's: those of its data place */
    int32_t n_shard;               /* lists of micro; 0: 1.  With grad_shards:
                                      ml_trainer_own_shards */
    int64_t n_rollout;             /* the schedule advances by this many */
    double denominator;            /* divides the sum of the samples' terms */
    ml_loss_fn *loss;
    void *ud;
    const ml_step_changes *changes; /* NULL: none */
    bool entropy; /* the loss has derivatives with respect to the entropy */
} ml_step;

/* Of all ranks' samples. */
typedef struct ml_step_result {
    double loss;      /* terms summed in the order of sample numbers, divided once */
    double grad_norm; /* before clipping */
    double lr, weight_decay;
    bool applied;
    int64_t n_token, n_loss;
    int64_t n_idle; /* samples in micro-batches without a backward pass */
    /* Of opts.mtp: rows that counted, their mean cross entropy, the norm before clipping. */
    int64_t n_mtp;
    double mtp_loss, mtp_grad_norm;
    char bad[400]; /* describes a non-finite value; empty: all were finite */
} ml_step_result;

ml_status ml_trainer_step(ml_trainer *t, const ml_step *step, ml_step_result *out,
                          ml_err *err);

/* The learning rate and weight decay that the schedule has for the next step. */
void ml_trainer_schedule_at(const ml_trainer *t, double *lr, double *weight_decay);

double ml_trainer_clip_grad(const ml_trainer *t); /* 0: no limit */

/* A step without the update: the gradients of the sum of the terms remain in the trainer
 * for inspection (see whole_grads). */
ml_status ml_trainer_accumulate(ml_trainer *t, const ml_step *step, ml_step_result *out,
                                ml_err *err);
/* Scales the schedule, warm-up and least rate included, so that it is the one of --lr `lr`. */
void ml_trainer_set_lr(ml_trainer *t, double lr);
/* Counts micro-batches as they finish.  Scoring adds its own to the expected number; for
 * steps the caller does.  NULL: not counted. */
void ml_trainer_set_work_count(ml_trainer *t, ml_work_count *work_count);

const ml_weights *ml_trainer_grads(const ml_trainer *t);

/* Op statistics of steps; NULL before the first. */
const ml_plan_stats *ml_trainer_stats(const ml_trainer *t);

const ml_spec *ml_trainer_spec(const ml_trainer *t);
/* The ranks that train together; ranks->comm has their number and this one's. */
ml_ranks *ml_trainer_ranks(ml_trainer *t);
/* Data places, over which samples are dealt out, and this rank's. */
int32_t ml_trainer_data_size(const ml_trainer *t);
int32_t ml_trainer_data_place(const ml_trainer *t);
/* The adapter that it trains; NULL: none. */
const ml_lora *ml_trainer_lora(const ml_trainer *t);
/* The multi-token prediction module that it trains; NULL: none. */
ml_mtp_trainer *ml_trainer_mtp(const ml_trainer *t);
/* Whether train steps have dropout, so that their log-probs are not those of the weights. */
bool ml_trainer_drops(const ml_trainer *t);
/* The lists of micro-batches of a scheduled step; the first of those of this rank, and their
 * number.  Without grad_shards each data place has one. */
int32_t ml_trainer_shards(const ml_trainer *t);
int32_t ml_trainer_first_shard(const ml_trainer *t);
int32_t ml_trainer_own_shards(const ml_trainer *t);
/* Sets of gradients beside the one that passes add to: sums that wait for their neighbours
 * in the tree. */
int32_t ml_trainer_waiting_sets(int32_t grad_shards, const ml_mesh *mesh);
ml_optimizer *ml_trainer_optimizer(ml_trainer *t);
int64_t ml_trainer_samples(const ml_trainer *t); /* trained on so far */
void ml_trainer_set_samples(ml_trainer *t, int64_t n);
void ml_trainer_set_version(ml_trainer *t, uint64_t version); /* of the weights */

#endif
