/* step_run.h - one optimizer step of a recipe: its loss between the trainer's forward and
 * backward pass.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LEARN_STEP_RUN_H
#define ML_RL_LEARN_STEP_RUN_H

#include "rl/learn/loss/step_loss.h"
#include "rl/observer.h"
#include "train/trainer.h"

typedef struct ml_step_run {
    ml_step_loss *loss;    /* made for the samples of this step on all ranks, in order: */
    const int32_t *sample; /* [loss->n] their indices in the list below */
    const ml_train_sample *list;
    const ml_schedule_step *step;
    int32_t rank;                   /* this one, which computes the loss of its samples */
    const ml_step_changes *changes; /* NULL: none */
    bool old_is_now;                /* the old log-probs are those of this forward pass */
    ml_observer observer;           /* of ML_ON_SAMPLE_LOSS; zeros: none */
} ml_step_run;

/* out->loss is the recipe's loss; metric [loss->n_metric] receives its metrics.  Both are of
 * all ranks, added in the order of the samples. */
ml_status ml_step_run_on(ml_trainer *t, const ml_step_run *r, ml_step_result *out,
                         double *metric, ml_err *err);

#endif
