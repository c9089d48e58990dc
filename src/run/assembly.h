/* assembly.h - the parts of a run that give it samples, put together: the rollout and, if it
 * generates, generator, publisher and evaluator.
 *
 * thread: the command's. */
#ifndef ML_RUN_ASSEMBLY_H
#define ML_RUN_ASSEMBLY_H

#include "rl/loop/console.h"
#include "rl/rollout/rollout_hooks.h"
#include "rl/rollout/shared.h"
#include "run/evaluator.h"
#include "run/publisher.h"
#include "run/rollouts.h"
#include "run/teachers.h"
#include "run/train_loop.h"

typedef struct ml_assembly {
    ml_train_run *run;
    const ml_loop_extensions *extensions; /* NULL: supervised fine-tuning */
    bool generates; /* false: that, or recorded rollouts, or other ranks do */
    bool publishes; /* some rank generates */
    bool teaches;   /* this rank asks the teachers, if there are any */
    ml_sft_rollout sft;
    ml_replay_rollout replay;
    ml_rollout_hooks hooks;   /* around the rollout */
    ml_shared_rollout shared; /* around both, if there are several ranks */
    ml_arena arena;
    ml_rollouts rollouts;
    ml_evaluator evaluator;
    ml_generator generator;
    ml_publisher *publisher;
    ml_run_teachers teachers; /* of rank 0 */
} ml_assembly;

/* Finds all configuration errors, before weights are loaded, and adds the memory of
 * generation to the plan of the run.  The run is open; e NULL: supervised fine-tuning. */
ml_status ml_assembly_open(ml_assembly *m, const ml_run_opts *c,
                           const ml_loop_extensions *e, ml_train_run *run, ml_err *err);
void ml_assembly_close(ml_assembly *m); /* zeros, and after a failed open */

/* Starts the engines on the weights of the run, which has started; they can evaluate. */
ml_status ml_assembly_start(ml_assembly *m, const ml_run_opts *c, ml_err *err);

/* Gives the loop its rollout, generator, publisher and evaluator. */
ml_status ml_assembly_join(ml_assembly *m, ml_train_loop *loop, const ml_display *display,
                           const ml_run_opts *c, ml_err *err);

/* Wraps a rollout with the extensions that process its samples, and with the shaping of their
 * rewards. */
ml_rollout ml_assembly_hook(ml_assembly *m, ml_rollout inner, const ml_run_opts *c);

#endif
