/* lr.h - learning rate and weight decay as functions of the number of samples trained on.
 *
 * The module train/ turns samples into weight updates: packing builds micro-batches, the
 * trainer runs the plans, the optimizer applies the gradients, snapshots save and restore
 * all of it.  rl/ calls it; it knows neither rewards nor generation.
 *
 * The schedules are Megatron-LM's, which count in samples: an iteration is a global
 * batch.
 *
 * thread: immutable after init, but for ml_lr_rescale. */
#ifndef ML_TRAIN_LR_H
#define ML_TRAIN_LR_H

#include <stdint.h>

#include "base/err.h"

/* In the order of the words in the flag tables. */
typedef enum ml_lr_style {
    ML_LR_CONSTANT,
    ML_LR_LINEAR,
    ML_LR_COSINE,
    ML_LR_INVERSE_SQRT,
    ML_LR_WSD, /* warm-up, stable, decay: constant until the last wsd_decay_iters */
} ml_lr_style;

typedef enum ml_wsd_style {
    ML_WSD_EXPONENTIAL,
    ML_WSD_LINEAR,
    ML_WSD_COSINE,
    ML_WSD_MINUS_SQRT,
} ml_wsd_style;

typedef enum ml_decay_incr_style {
    ML_DECAY_INCR_CONSTANT,
    ML_DECAY_INCR_LINEAR,
    ML_DECAY_INCR_COSINE,
} ml_decay_incr_style;

typedef struct ml_lr_opts {
    int64_t train_iters, global_batch_size;
    double lr, min_lr, warmup_init;
    ml_lr_style style;
    int64_t decay_iters; /* 0: train_iters */
    int64_t warmup_iters;
    double warmup_fraction; /* of the decay; 0: use warmup_iters */
    int64_t wsd_decay_iters;
    ml_wsd_style wsd_style;
    double start_weight_decay, end_weight_decay;
    ml_decay_incr_style weight_decay_style;
} ml_lr_opts;

typedef struct ml_lr {
    ml_lr_opts opts;
    double warmup, decay, wsd_decay, weight_decay_incr; /* in samples */
} ml_lr;

/* ML_EUSAGE names the flag that conflicts with the others. */
ml_status ml_lr_init(ml_lr *out, const ml_lr_opts *opts, ml_err *err);

/* The schedule of `opts`, with all its rates multiplied so that the highest one is `lr`.  It
 * depends on its arguments alone, not on earlier changes. */
void ml_lr_rescale(ml_lr *s, const ml_lr_opts *opts, double lr);

/* For the step that follows n_sample trained samples. */
double ml_lr_at(const ml_lr *s, int64_t n_sample);
double ml_lr_weight_decay_at(const ml_lr *s, int64_t n_sample);

#endif
