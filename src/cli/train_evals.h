/* train_evals.h - the evaluations that a command line asks for.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_EVALS_H
#define ML_CLI_TRAIN_EVALS_H

#include "cli/train_gen.h"

/* Opens the sets of --eval-prompt-data or --eval-config, with rewards and environments of their
 * own where they differ from the run's. */
ml_status ml_train_evals_open(ml_train_gen *t, const ml_config *c, ml_err *err);
void ml_train_evals_close(ml_train_gen *t);

#endif
