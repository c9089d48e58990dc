/* train_dir.h - records of sft and train in the directory of a run.
 *
 *     DIR/flags.json   the value of every flag
 *     DIR/inputs.json  size and hash of all models and data sets that are read
 *
 * A resumed run compares both with their previous content and reports the differences. */
#ifndef ML_CLI_TRAIN_DIR_H
#define ML_CLI_TRAIN_DIR_H

#include "cli/flags/flag.h"
#include "rl/train_run.h"

/* Without --save: creates runs/MODEL-DATE, sets it as the run's save directory, and
 * prints it.  Runs whose result is not needed (--debug-..., recorded rollouts) get no
 * directory. */
ml_status ml_train_dir_choose(ml_train_run *r, const ml_config *c, ml_err *err);
/* Removes the chosen directory if nothing was written to it. */
void ml_train_dir_drop(const ml_train_run *r, const ml_config *c);

/* Called after the run has started: warns of changes since it was saved, and writes both
 * files. */
ml_status ml_train_dir_describe(ml_train_run *r, ml_cmd cmd, const ml_config *c,
                                ml_err *err);

#endif
