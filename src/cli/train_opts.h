/* train_opts.h - the flags of sft and train as a run takes them. */
#ifndef ML_CLI_TRAIN_OPTS_H
#define ML_CLI_TRAIN_OPTS_H

#include "cli/flag.h"
#include "rl/train_run.h"

ml_weight_dtype ml_train_dtype(const ml_config *c);

/* All but the recipe and what train alone has.  n_per_prompt: samples of a prompt.
 * ML_EUSAGE when flags do not fit together. */
ml_status ml_train_opts(ml_train_run_opts *out, const ml_config *c, int64_t n_per_prompt,
                        ml_err *err);

/* The models beside the actor that the recipe of `out` wants.  url [ML_TEACHERS] must outlive
 * the run. */
enum { ML_TEACHERS = 16 };
ml_status ml_train_models(ml_train_run_opts *out, const char **url, const ml_config *c,
                          ml_err *err);

/* What a resumed run must share with the one that saved, as the members of a JSON object. */
void ml_train_opts_text(ml_text *out, const ml_train_run_opts *o, const ml_config *c);

/* --dry-run: prints what the run will take, and fails when the machine does not have it. */
ml_status ml_train_print_memory(ml_train_run *r, ml_err *err);

/* Starts the run; train_dir.h says where it is saved and what it writes down of itself. */
ml_status ml_train_start(ml_train_run *r, ml_cmd cmd, const ml_config *c, ml_err *err);

#endif
