/* trainer.h - the training side of a model: scores samples, and steps on a loss.
 *
 * A step runs the samples through a plan, micro-batch by micro-batch, hands each one's
 * log-probs and entropies to the loss, takes the derivatives back through the plan into
 * one set of f32 gradients, and lets the optimizer apply them.  The forward is the one
 * that scores and generates, so for the same weights the log-probs are the same bits, in
 * any packing.  Each weight's gradient is one chain of sums over tokens: cutting the same
 * order of samples into other micro-batches does not change it.
 *
 * The weights are the caller's (an engine may read the same set between steps); the
 * trainer owns gradients, optimizer state and plans.
 *
 * thread: one owner, on the backend's stream. */
#ifndef ML_TRAIN_TRAINER_H
#define ML_TRAIN_TRAINER_H

#include "base/work_count.h"
#include "model/plan.h"
#include "train/lr.h"
#include "train/micro.h"
#include "train/optimizer.h"

typedef struct ml_trainer ml_trainer;

typedef struct ml_trainer_opts {
    ml_optimizer_opts optimizer;
    ml_lr_opts lr;
    double temperature;       /* logits are divided by it; 0: 1 */
    ml_schedule_opts batch;   /* how samples become micro-batches */
    int64_t score_max_tokens; /* of a micro-batch that is only scored; 0: as batch */
    ml_recompute recompute;
    bool keep_logits;  /* from forward to backward: faster, by a vocabulary per loss row */
    int32_t loss_rows; /* whose logits are computed at a time; 0: as the backend likes */
    /* Where what it computes is written, scoring and training; NULL: nowhere. */
    ml_plan_dump *dump_score, *dump_train;
    ml_timeline *spans_score, *spans_train; /* who is told when ops ran; NULL: nobody */
    bool replay[ML_N_ROUTING]; /* samples may bring choices, and have them recorded */
    bool stop_on_bad;          /* a loss or gradient that is not finite is an error */
} ml_trainer_opts;

/* spec, weights and backend must outlive it. */
ml_status ml_trainer_open(ml_trainer **out, const ml_spec *s, ml_weights *w, ml_backend *be,
                          const ml_trainer_opts *opts, ml_err *err);
void ml_trainer_close(ml_trainer *t); /* NULL is fine */

/* Gives back all memory that only training needs, and takes it again: no call but close in
 * between.  What is trained does not change. */
ml_status ml_trainer_release(ml_trainer *t, ml_err *err);
ml_status ml_trainer_take(ml_trainer *t, ml_err *err);

/* The steps and micro-batches of these samples, in the arena.  Idle ones stand apart, so that
 * only their forward pass is run. */
ml_status ml_trainer_schedule(ml_schedule *out, const ml_trainer *t, ml_arena *a,
                              const ml_train_sample *s, int32_t n, ml_err *err);

/* Log-probs and entropies of all response tokens, masked ones too, under the
 * weights w (of the same spec, which choose for themselves; NULL: the trainer's own).  logprob[i] and
 * entropy[i] are [n_response] of sample i; entropy may be NULL.  A critic (of a
 * spec that is one) gives values. */
ml_status ml_trainer_score(ml_trainer *t, const ml_weights *w, const ml_train_sample *s,
                           int32_t n, float *const *logprob, float *const *entropy,
                           ml_err *err);

/* The loss of the samples of one micro-batch: terms and derivatives of each.  What it says
 * of a sample may depend on that sample (and on what it knows beforehand) only. */
typedef ml_status ml_loss_fn(void *ud, ml_loss_io *io, int32_t n_sample, ml_err *err);

typedef struct ml_step {
    const ml_train_sample *sample; /* the list that bins number */
    const ml_bins *micro;
    int64_t n_rollout;  /* the schedule advances by as many */
    double denominator; /* the sum of the samples' terms is divided by it */
    ml_loss_fn *loss;
    void *ud;
    bool entropy; /* the loss has derivatives by the entropy */
} ml_step;

typedef struct ml_step_result {
    double loss;      /* terms summed in the order of the samples' numbers, divided once */
    double grad_norm; /* before clipping */
    double lr, weight_decay;
    bool applied;
    int64_t n_token, n_loss;
    int64_t n_idle; /* samples in micro-batches without a backward pass */
    char bad[400];  /* what was not finite, a sentence; empty when all was */
} ml_step_result;

ml_status ml_trainer_step(ml_trainer *t, const ml_step *step, ml_step_result *out,
                          ml_err *err);

/* Everything of a step but the update: gradients of the sum of the terms are left in the
 * trainer, for whoever wants to look. */
ml_status ml_trainer_accumulate(ml_trainer *t, const ml_step *step, ml_step_result *out,
                                ml_err *err);
/* Counts micro-batches as they are done, and expects those of passes that only score; who asks
 * for steps expects theirs.  NULL: nobody counts. */
void ml_trainer_set_work_count(ml_trainer *t, ml_work_count *tally);

/* Bytes of gradients; a tied table has two. */
size_t ml_trainer_grad_bytes(const ml_spec *s);
const ml_weights *ml_trainer_grads(const ml_trainer *t);

/* What the ops of steps did; NULL before the first. */
const ml_plan_stats *ml_trainer_stats(const ml_trainer *t);

const ml_spec *ml_trainer_spec(const ml_trainer *t);
ml_optimizer *ml_trainer_optimizer(ml_trainer *t);
int64_t ml_trainer_samples(const ml_trainer *t); /* trained on so far */
void ml_trainer_set_samples(ml_trainer *t, int64_t n);

#endif
