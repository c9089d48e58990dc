/* inputs.h - the directory of a run without --save, and the record of what a run reads.
 *
 *     DIR/inputs.json  size and hash of all models and data sets that are read
 *
 * thread: the command's. */
#ifndef ML_RUN_INPUTS_H
#define ML_RUN_INPUTS_H

#include "run/opts.h"
#include "run/run.h"

/* Without --save: creates runs/MODEL-DATE, sets it as the run's save directory, and
 * reports it.  Runs whose result is not needed (--debug-..., recorded rollouts) get no
 * directory. */
ml_status ml_save_dir_choose(ml_train_run *r, const ml_run_opts *c,
                             void (*say)(const char *), ml_err *err);
/* Removes the chosen directory if nothing was written to it. */
void ml_save_dir_drop(const ml_train_run *r, const ml_run_opts *c);

/* Called after the run has started: if it continues a saved one, warns of inputs that
 * have changed since; writes inputs.json. */
ml_status ml_run_inputs_record(ml_train_run *r, const ml_run_opts *c, ml_err *err);

/* A JSON object that an earlier process of the run has written to the directory, and its
 * text; NULL, with a warning: missing or truncated. */
const ml_json *ml_run_previous(ml_arena *a, const char *dir, const char *name,
                               ml_str *text);

#endif
