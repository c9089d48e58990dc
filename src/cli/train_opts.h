/* train_opts.h - the training flags as the trainer takes them. */
#ifndef ML_CLI_TRAIN_OPTS_H
#define ML_CLI_TRAIN_OPTS_H

#include "cli/config.h"
#include "train/trainer.h"

/* n_sample: of a rollout, all prompts together.  ML_EUSAGE when flags do not fit together. */
ml_status ml_train_opts(ml_trainer_opts *out, const ml_config *c, int64_t num_rollout,
                        int64_t n_sample, ml_err *err);

/* What a resumed run must share with the one that saved, as a JSON object. */
void ml_train_opts_text(ml_text *out, const ml_trainer_opts *o, const ml_config *c);

#endif
