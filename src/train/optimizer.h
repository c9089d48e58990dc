/* optimizer.h - updates weights from gradients.
 *
 * AdamW as computed by Megatron and PyTorch, SGD with momentum, Muon or Adafactor
 * (update_rule.h).  Moments are f32, those of AdamW optionally bf16 or FP8 (moments.h).
 * bf16 weights have an f32 master copy, and each weight is its master rounded to bf16.
 * This includes vectors, which are kept in f32 but stored in checkpoints as bf16.  f32
 * weights are their own masters.  Vectors (norms, biases) have no weight decay.
 *
 * A gradient that is not finite never changes a weight: the update names the tensor and
 * the step is skipped.
 *
 * Ranks that train together divide the state (ZeRO-1): each holds masters and moments of
 * the ranges that it owns (model/shard_map.h), updates these, and gets the rest of its
 * weights from the ranks with the same part.  The norm of the gradients has the same bits for any number of ranks.
 *
 * thread: the trainer's; the weights must have no reader during a step. */
#ifndef ML_TRAIN_OPTIMIZER_H
#define ML_TRAIN_OPTIMIZER_H

#include "model/shard_map.h"
#include "model/weights.h"
#include "model/ranks.h"
#include "train/grad_rules.h"
#include "train/update_rule.h"

typedef struct ml_optimizer_opts {
    ml_optim_rule_opts rule;
    double clip_grad;        /* limit of the global gradient norm; 0: no limit */
    const char *freeze;      /* parameters that are not trained: comma-separated shell
                                 patterns */
    const char *offload_dir; /* keep the state in a mapped file in this directory; NULL:
                                 in memory */
    bool offload_host;       /* keep the state in host memory, if the device has its own */
    int64_t offload_piece;   /* elements copied to the device at a time; 0: 4 M */
    bool no_state;           /* no step is taken: it only exchanges gradients */
    /* The ranks that train together, NULL: one; and the pipeline stages (shard_map.h), NULL:
     * one.  The trainer's. */
    const ml_mesh *mesh;
    const int32_t *stage;
} ml_optimizer_opts;

/* Weight sets have the layout of the gradients: each tensor is this rank's range of a
 * parameter (ml_shard_view); those without elements, as of frozen parameters, are absent. */
typedef struct ml_optimizer {
    ml_optimizer_opts opts;
    const ml_spec *spec;
    ml_weights *weights;
    ml_backend *be;
    ml_ranks ranks;         /* all that train together */
    ml_ranks same, experts; /* with the same part of the weights; with the same experts */
    ml_shard_map map;
    bool *frozen;      /* [n_param] */
    ml_weights master; /* for f32 weights: views of the weights themselves */
    /* Of parameters whose rule has no such moment, and of none that this rank owns, absent;
     * bytes, if the format is not f32. */
    ml_weights moment1, moment2;
    ml_buf scratch; /* of rules */
    bool own_master;
    int64_t n_step; /* applied so far */
    ml_buf buf;
    void *mmap;       /* state in a mapped file, or */
    void *host;       /* in host memory */
    ml_buf stage;     /* device copy of one piece of master and moments, if the device
                         cannot access the state */
    size_t bytes;     /* of buf, mmap or host */
    ml_buf block_buf; /* sums of squares of the gradients (optimizer.c: squares) */
    void *away;       /* host copy of the state while it is released; NULL: never
                         released */
    const ml_grad_rules *rules; /* of the next step, checked; NULL: none */
    double *square, *factor;    /* [n_param] sums of squares of gradients, and the factors
                                   that the rules give */
    bool is_away;               /* the state is in `away`, and buf is empty */
    ml_arena arena;
} ml_optimizer;

/* Bytes of this rank's state; `bf16`: the weights are bf16 and need masters. */
size_t ml_optimizer_bytes(const ml_spec *s, const ml_optimizer_opts *opts, bool bf16);
/* Bytes of scratch that steps need. */
size_t ml_optimizer_scratch_bytes(const ml_spec *s, const ml_optimizer_opts *opts,
                                  ml_backend *be);
/* Bytes of the same state in a snapshot, where all of it is f32. */
size_t ml_optimizer_saved_bytes(const ml_spec *s, const ml_optimizer_opts *opts, bool bf16);
/* Whether the state is kept outside the device's memory, and the device memory needed for
 * the piece being updated. */
bool ml_optimizer_is_staged(const ml_optimizer_opts *opts, const ml_device *dev);
size_t ml_optimizer_stage_bytes(const ml_optimizer_opts *opts);
/* Bytes for what ranks exchange, at most. */
size_t ml_optimizer_exchange_bytes(const ml_spec *s, const ml_optimizer_opts *opts);

/* spec, weights and backend must outlive it.  A freeze pattern that matches nothing, or
 * everything, is ML_EUSAGE. */
ml_status ml_optimizer_open(ml_optimizer *out, const ml_spec *s, ml_weights *w,
                            ml_backend *be, const ml_optimizer_opts *opts, ml_err *err);
void ml_optimizer_close(ml_optimizer *o); /* zero-initialized is allowed */
/* Release moves the state to host memory and frees the device memory; take moves it back.
 * State in host memory or a file does not move.  In between, no step and no access to the
 * state is allowed. */
ml_status ml_optimizer_release(ml_optimizer *o, ml_err *err);
ml_status ml_optimizer_take(ml_optimizer *o, ml_err *err);
/* Resets to step 0: moments are 0; masters are kept. */
void ml_optimizer_reset(ml_optimizer *o);

/* What a rank owns of a parameter: nothing if it is frozen. */
ml_shard_range ml_optimizer_range(const ml_optimizer *o, int32_t param, int32_t rank);

typedef struct ml_update {
    double grad_norm;  /* before clipping */
    double clip;       /* factor applied to the gradients */
    bool applied;      /* false: a gradient was not finite, nothing changed */
    int32_t bad_param; /* the first bad tensor that backward computes; or ML_NONE */
    int64_t n_bad;     /* its non-finite elements */
} ml_update;

/* Adds up the gradients of the ranks with the same part of the weights: this rank's ranges
 * of them become the sums, and with `whole` all others of the part, too.  Collective. */
ml_status ml_optimizer_reduce(ml_optimizer *o, const ml_weights *grads, bool whole,
                              ml_err *err);

/* What all ranks own of one parameter of a set of weights or gradients: `to` of rank 0, host
 * memory, becomes the whole packed tensor.  mine: this rank's range, in the memory of
 * stream (NULL: the host's).  Collective. */
ml_status ml_optimizer_collect(const ml_optimizer *o, int32_t param, const ml_tensor *mine,
                               ml_stream *stream, void *to, ml_err *err);
/* The same for the elements `want` of the parameter alone, which get their places in `to`. */
ml_status ml_optimizer_collect_part(const ml_optimizer *o, int32_t param,
                                    ml_shard_range want, const ml_tensor *mine,
                                    ml_stream *stream, void *to, ml_err *err);

/* A part of a parameter's state (ML_STATE_MASTER ...) in f32: its shape, n_stack 0 if there is
 * none; this rank's elements, or another's; whether they are stored in another format. */
ml_param ml_optimizer_state_param(const ml_optimizer *o, int kind, int32_t param);
ml_shard_range ml_optimizer_state_range(const ml_optimizer *o, int kind, int32_t param,
                                        int32_t rank);
bool ml_optimizer_converts(const ml_optimizer *o, int kind, int32_t param);
/* ml_optimizer_collect of a moment, in f32.  Collective. */
ml_status ml_optimizer_collect_state(const ml_optimizer *o, int kind, int32_t param,
                                     void *to, ml_err *err);
/* Stores this rank's elements of a converted moment. */
void ml_optimizer_store_state(ml_optimizer *o, int kind, int32_t param, const float *from);

/* One step; gradients are first multiplied by grad_scale.  An applied step increments the
 * weights' version.  Collective: every rank applies it, or none. */
ml_status ml_optimizer_step(ml_optimizer *o, const ml_weights *grads, double lr,
                            double weight_decay, double grad_scale, ml_update *out,
                            ml_err *err);

#endif
