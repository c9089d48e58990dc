/* memory_plan.h - estimates the memory of a training run before it allocates anything.
 *
 * One row each for every weight set that the command line implies, gradients, optimizer
 * state, activations and copies.  A run that does not fit is refused before its first
 * step, with advice on which flags to change.
 *
 * thread: any. */
#ifndef ML_RUN_MEMORY_PLAN_H
#define ML_RUN_MEMORY_PLAN_H

#include "train/trainer.h"

typedef struct ml_memory_request {
    const ml_spec *spec;
    ml_backend *be;
    size_t weight_bytes;                     /* of one weight set, or of this rank's part */
    size_t whole_bytes;                      /* of all parts */
    const ml_checkpoint *from, *critic_from; /* whose dtypes the weights have */
    ml_weight_dtype dtype;
    bool bf16;              /* the set holds bf16 weights */
    const char *const *set; /* names of the weight sets, "actor" first; NULL-terminated */
    const ml_spec *critic;  /* a critic with its own trainer; NULL: none */
    size_t critic_bytes;    /* of the critic's weights, of all ranks */
    const int32_t *critic_stage; /* as opts.stage, of the critic's nodes */
    bool generates_only;         /* the rank has no trainer */
    ml_trainer_opts opts;
    int64_t longest; /* tokens of the longest sample; 0: not known */
    bool scores;     /* samples are also scored (forward only) */
    bool async_save; /* snapshots are written from a copy */
    bool saves_ref;  /* snapshots include the reference weights */
    size_t
        base_bytes; /* in use before the run: the program, or the device's own overhead */
    size_t engine_bytes;    /* used by generation in the same memory */
    size_t kv_bytes;        /* KV cache */
    size_t reward_bytes;    /* reward model and judge */
    size_t quantized_bytes; /* of quantized copies of weights */
    bool in_turns;          /* these and training use their memory alternately */
    bool act_in_turns;      /* the KV cache and the activations of training do so */
} ml_memory_request;

enum { ML_MEMORY_ROWS = 32 };

typedef struct ml_memory {
    struct {
        const char *what;
        size_t bytes;
    } row[ML_MEMORY_ROWS];
    int n;
    size_t total;
    size_t returned; /* by training, while tokens are generated */
    size_t in_turns; /* saved by using memory alternately; already subtracted from the
                        total */
    size_t on_disk;  /* optimizer state in a file, not part of the total */
    size_t on_host;  /* for runs on a device: host memory needed in addition */
} ml_memory;

ml_status ml_memory_plan(ml_memory *out, const ml_memory_request *req, ml_err *err);

/* The micro-batches that the plan is made for, for the trainer's options of this name. */
void ml_memory_plan_caps(const ml_memory_request *req, ml_batch_caps *train_caps,
                         ml_batch_caps *score_caps);

/* The capacity of a full micro-batch, at 64 tokens per sequence; n_context ranks divide
 * each sequence into two pieces each. */
ml_batch_caps ml_memory_caps(int64_t tokens, int32_t n_context);

/* A line per row, and the total. */
void ml_memory_text(ml_text *out, const ml_memory *m);

/* ML_ENOMEM if the plan exceeds `available`; names the flags that would make it fit. */
ml_status ml_memory_check(const ml_memory_request *req, size_t available, ml_err *err);

#endif
