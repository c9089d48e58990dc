/* train_evals.h - the evaluations of a command line.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_EVALS_H
#define ML_CLI_TRAIN_EVALS_H

#include "cli/train_gen.h"
#include "rl/eval/eval_config.h"

/* The sets of --eval-prompt-data or --eval-config. */
ml_status ml_train_evals_specs(ml_eval_spec **out, int32_t *n, ml_arena *a,
                               const ml_config *c, ml_err *err);
/* The flags of rewards and environments that apply to a set. */
ml_config ml_train_evals_config(const ml_config *c, const ml_eval_spec *s);

/* Opens the sets, with their own rewards and environments if they differ from the run's. */
ml_status ml_train_evals_open(ml_train_gen *t, const ml_config *c, ml_err *err);
void ml_train_evals_close(ml_train_gen *t);

#endif
