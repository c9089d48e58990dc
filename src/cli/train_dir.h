/* train_dir.h - what sft and train write down of themselves in the directory of a run.
 *
 *     DIR/flags.json   every flag as it counts
 *     DIR/inputs.json  size and hash of all models and data sets that are read
 *
 * A run that is continued compares both with what they were, and names what has changed. */
#ifndef ML_CLI_TRAIN_DIR_H
#define ML_CLI_TRAIN_DIR_H

#include "cli/flag.h"
#include "rl/train_run.h"

/* Without --save: makes runs/MODEL-DATE, has the run save there, and prints it.  Runs whose
 * result is thrown away on purpose (--debug-..., recorded rounds) get no directory. */
ml_status ml_train_dir_choose(ml_train_run *r, const ml_config *c, ml_err *err);
/* Removes the chosen directory again when nothing was written to it. */
void ml_train_dir_drop(const ml_train_run *r, const ml_config *c);

/* The run has started: warns of what has changed since it was saved, and writes both files. */
ml_status ml_train_dir_describe(ml_train_run *r, ml_cmd cmd, const ml_config *c,
                                ml_err *err);

#endif
