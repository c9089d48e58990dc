/* evaluator.h - the evaluations of a run: on the engines of the rollouts, between them, or
 * on engines of their own while the loop continues.
 *
 * thread: the command's. */
#ifndef ML_RUN_EVALUATOR_H
#define ML_RUN_EVALUATOR_H

#include "rl/eval/eval_config.h"
#include "rl/eval/eval_queue.h"
#include "run/generator.h"
#include "run/rollouts.h"

typedef struct ml_evaluator {
    ml_arena *arena;
    ml_train_run *run;
    const ml_rollouts *rollouts; /* whose settings apply where a set has none */
    ml_evals evals;
    int64_t context;           /* of an answer with its prompt; 0: as in rollouts */
    ml_supervisor *supervisor; /* of engines that only evaluate; NULL: none */
    ml_gen *own_gen;           /* over them */
    ml_eval_queue *queue;      /* evaluates in the background there */
} ml_evaluator;

/* The sets of --eval-prompt-data or --eval-config. */
ml_status ml_evaluator_specs(ml_eval_spec **out, int32_t *n, ml_arena *a,
                             const ml_run_opts *c, ml_err *err);
/* The flags of rewards and environments that apply to a set. */
ml_run_opts ml_evaluator_config(const ml_run_opts *c, const ml_eval_spec *s);

/* Opens the sets, with their own rewards and environments if they differ from the run's.
 * The arena must outlive it. */
ml_status ml_evaluator_open(ml_evaluator *e, ml_arena *a, const ml_rollouts *rollouts,
                            const ml_loop_extensions *extensions, ml_train_run *run,
                            const ml_run_opts *c, ml_err *err);
void ml_evaluator_close(ml_evaluator *e); /* zeros, and after a failed open */

/* The generator has started.  With --eval-num-gpus, starts the engines and the queue. */
ml_status ml_evaluator_start(ml_evaluator *e, ml_generator *g, const ml_gen_ctx *gen_ctx,
                             const ml_run_opts *c, ml_err *err);

#endif
