/* mtp_runner.h - runs the multi-token prediction module (model/mtp.h) on the hidden states of a
 * micro-batch of the trunk: its logits, its loss, its gradients.
 *
 * Row p of a sample predicts token p + 2.  The loss is the cross entropy of the rows that
 * count.  Which do is Miles' rule, which moves the loss mask twice although it is given for
 * the predicted token already: row p counts if token p + 3 is in the loss.  Of an EAGLE-3 head
 * (model/eagle3.h), a row counts if the token that it predicts is in the loss and in the draft
 * vocabulary.
 *
 * thread: the backend's stream. */
#ifndef ML_TRAIN_MTP_RUNNER_H
#define ML_TRAIN_MTP_RUNNER_H

#include "model/eagle3.h"
#include "train/grads.h"
#include "train/micro.h"

typedef struct ml_mtp_runner {
    const ml_spec *spec;
    const ml_weights *weights;
    const ml_draft_vocab *vocab; /* of an EAGLE-3 head, or NULL */
    ml_backend *be;
    bool backward, logits;
    ml_plan *plan; /* grown to the largest micro-batch */
    ml_batch batch;
    ml_batch_caps caps;
    struct ml_mtp_context *context; /* of pieces of samples (mtp_context.h), or NULL */
    ml_micro micro;                 /* of these */
    ml_grads grads;                 /* with `backward` */
    int32_t *target;                /* [n_token] */
    float *logprob, *dlogprob;      /* [n_loss] */
    ml_arena arena;                 /* of the plan's arrays */
} ml_mtp_runner;

/* spec, weights, vocab and backend must outlive it; `grads` is in the arena.  logits: of all
 * rows, not only of those that count. */
ml_status ml_mtp_runner_open(ml_mtp_runner *r, const ml_spec *s, const ml_weights *w,
                             const ml_draft_vocab *vocab, bool backward, bool logits,
                             ml_backend *be, ml_arena *a, ml_err *err);
void ml_mtp_runner_close(ml_mtp_runner *r); /* zero-initialized is allowed */

/* Frees the plan; the next micro-batch builds it again. */
void ml_mtp_runner_release(ml_mtp_runner *r);

/* How many rows of a sample count; vocab: of an EAGLE-3 head, or NULL. */
int64_t ml_mtp_rows(const ml_draft_vocab *vocab, const ml_train_sample *s);

/* The id that row p of a sample scores, or ML_TARGET_SKIP if it does not count. */
int32_t ml_mtp_target(const ml_draft_vocab *vocab, const ml_train_sample *s, int32_t p);

/* Its plans. */
ml_plan_opts ml_mtp_runner_plan(const ml_spec *s, ml_batch_caps caps, bool backward,
                                bool logits);
/* A plan and arrays for such micro-batches. */
ml_status ml_mtp_runner_grow(ml_mtp_runner *r, ml_batch_caps caps, ml_err *err);

/* The sum of the cross entropies of the rows that count of each sample of a micro-batch, sum
 * [bin->n], after a forward of the trunk over whole samples that kept what the module reads
 * (ml_mtp_keep).  Adds the gradients of `by` times the sums, if it is not 0. */
ml_status ml_mtp_runner_run(ml_mtp_runner *r, ml_trunk_rows trunk, const ml_train_sample *s,
                            const ml_bin *bin, float by, double *sum, ml_err *err);

#endif
