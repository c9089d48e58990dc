/* train_opts.h - the flags of sft and train as options of a run. */
#ifndef ML_CLI_TRAIN_OPTS_H
#define ML_CLI_TRAIN_OPTS_H

#include "cli/flags/flag.h"
#include "rl/train_run.h"

ml_weight_dtype ml_train_dtype(const ml_config *c);

/* Everything but the recipe and the options that only train has.  n_per_prompt: samples
 * per prompt.  ML_EUSAGE if flags contradict each other. */
ml_status ml_train_opts(ml_train_run_opts *out, const ml_config *c, int64_t n_per_prompt,
                        ml_err *err);

/* The models besides the actor that the recipe of `out` needs.  url [ML_TEACHERS] must
 * outlive the run. */
enum { ML_TEACHERS = 16 };
ml_status ml_train_models(ml_train_run_opts *out, const char **url, const ml_config *c,
                          ml_err *err);

/* The settings that a resumed run must share with the one that saved, as the members of a
 * JSON object. */
void ml_train_opts_text(ml_text *out, const ml_train_run_opts *o, const ml_config *c);

/* --dry-run: prints the memory plan of the run, and fails if the machine does not have
 * enough. */
ml_status ml_train_print_memory(ml_train_run *r, ml_err *err);

/* Starts the run; see train_dir.h for its save directory and its records. */
ml_status ml_train_start(ml_train_run *r, ml_cmd cmd, const ml_config *c, ml_err *err);

#endif
