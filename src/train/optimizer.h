/* optimizer.h - gradients become weights.
 *
 * AdamW as Megatron and torch compute it, or SGD with momentum.  Moments are f32.  Over
 * bf16 weights there is an f32 master copy and the weight is its rounding, vectors
 * included (they are kept in f32, but a checkpoint has them in bf16); f32 weights are
 * their own masters.  Vectors (norms, biases) do not decay.
 *
 * A gradient that is not finite never reaches a weight: the tensor is named and the step
 * is left out.
 *
 * thread: the trainer's; the weights must have no reader during a step. */
#ifndef ML_TRAIN_OPTIMIZER_H
#define ML_TRAIN_OPTIMIZER_H

#include "model/weights.h"

typedef enum ml_optimizer_kind { ML_OPTIMIZER_ADAM, ML_OPTIMIZER_SGD } ml_optimizer_kind;

typedef struct ml_optimizer_opts {
    ml_optimizer_kind kind;
    double beta1, beta2, eps; /* Adam */
    double momentum;          /* SGD */
    double clip_grad;         /* largest norm of all gradients together; 0: no limit */
    const char *freeze; /* names that are not trained: shell patterns, commas between */
    const char *offload_dir; /* the state lives in a file here; NULL: in memory, */
    bool offload_host;       /* the host's, where a device has memory of its own */
    int64_t offload_piece;   /* numbers of it that another device has at a time; 0: 4 M */
} ml_optimizer_opts;

/* Sets laid out as the gradients; tensors of frozen parameters are absent. */
typedef struct ml_optimizer {
    ml_optimizer_opts opts;
    const ml_spec *spec;
    ml_weights *weights;
    ml_backend *be;
    ml_weights master;           /* of f32 weights: views of the weights themselves */
    ml_weights moment1, moment2; /* SGD: moment2 is empty */
    bool own_master;
    int64_t n_step; /* applied so far */
    ml_buf buf;
    void *spill;      /* the file's */
    void *host;       /* or the host's, */
    ml_buf stage;     /* with a piece of each kind on a device that cannot reach either */
    size_t bytes;     /* of buf, spill or host */
    ml_buf block_buf; /* sums of squares of blocks of the gradients, and */
    double *block;    /* where they are read */
    void *away;       /* memory of the host for the state; NULL: it never left */
    bool is_away;     /* it is there, and buf is empty */
    ml_arena arena;
} ml_optimizer;

/* Bytes of state; `bf16`: the weights are, so that masters are needed. */
size_t ml_optimizer_bytes(const ml_spec *s, const ml_optimizer_opts *opts, bool bf16);
/* Whether the state is elsewhere than a device's own memory, and what it then takes of that: for
 * the piece that is updated. */
bool ml_optimizer_is_staged(const ml_optimizer_opts *opts, const ml_device *dev);
size_t ml_optimizer_stage_bytes(const ml_optimizer_opts *opts);
/* Whether opts.freeze names the parameter. */
bool ml_optimizer_frozen(const ml_optimizer_opts *opts, const ml_param *p);

/* spec, weights and backend must outlive it.  A freeze pattern that fits nothing, or
 * everything, is ML_EUSAGE. */
ml_status ml_optimizer_open(ml_optimizer *out, const ml_spec *s, ml_weights *w,
                            ml_backend *be, const ml_optimizer_opts *opts, ml_err *err);
void ml_optimizer_close(ml_optimizer *o); /* zeros are fine */
/* Gives the memory of a device back and keeps the state in the host's, and takes it again; of the
 * host's own memory, or a file, nothing moves.  No step and no look at the state in between. */
ml_status ml_optimizer_release(ml_optimizer *o, ml_err *err);
ml_status ml_optimizer_take(ml_optimizer *o, ml_err *err);
/* As if no step had been made: moments are 0; masters stay. */
void ml_optimizer_reset(ml_optimizer *o);

typedef struct ml_update {
    double grad_norm;  /* before clipping */
    double clip;       /* what gradients were multiplied by */
    bool applied;      /* false: a gradient was not finite, nothing changed */
    int32_t bad_param; /* such a tensor, the first that backward computes; or ML_NONE */
    int64_t n_bad;     /* its elements that are not finite */
} ml_update;

/* One step; gradients are multiplied by grad_scale first.  An applied step raises the
 * weights' version. */
void ml_optimizer_step(ml_optimizer *o, const ml_weights *grads, double lr,
                       double weight_decay, double grad_scale, ml_update *out);

#endif
