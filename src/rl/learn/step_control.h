/* step_control.h - what a hook changes about a train step (miles_step of miles/plugin.h), and
 * how all ranks get it from rank 0.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LEARN_STEP_CONTROL_H
#define ML_RL_LEARN_STEP_CONTROL_H

#include "miles/plugin.h"
#include "rl/record/metrics.h"
#include "train/trainer.h"

typedef struct ml_step_control {
    miles_step step;
    ml_arena *arena;
    ml_metrics *metrics; /* of the step */
    ml_text rules;       /* array of ml_grad_rule */
    ml_step_changes changes;
} ml_step_control;

/* With the numbers of the trainer's next step. */
void ml_step_control_init(ml_step_control *c, ml_arena *a, const ml_trainer *t,
                          ml_metrics *metrics);
void ml_step_control_release(ml_step_control *c);

/* After the hooks: checks the numbers and gives them to all ranks.  Collective. */
ml_status ml_step_control_share(ml_step_control *c, ml_trainer *t, ml_err *err);

#endif
