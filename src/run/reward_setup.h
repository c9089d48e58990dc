/* reward_setup.h - the rewards of a run, and the check that every sample will have one,
 * before weights are read.
 *
 * thread: the command's. */
#ifndef ML_RUN_REWARD_SETUP_H
#define ML_RUN_REWARD_SETUP_H

#include "run/opts.h"
#include "rl/data/dataset.h"

/* A user's environment gives rewards; a sample for which it does not has reward 0, unless
 * another reward is configured. */
bool ml_reward_from_environment(const ml_run_opts *c);

/* ML_EUSAGE if no flag names a reward and a row of the data does not either. */
ml_status ml_reward_check(const ml_run_opts *c, const ml_dataset *ds, ml_err *err);

/* Resolves --custom-rm-path and --rm-type.  Strings point into `a`, argv or the
 * environment. */
ml_status ml_reward_opts_resolve(ml_reward_opts *out, const ml_run_opts *c, ml_arena *a,
                                 ml_err *err);
/* Opens them; *out is unchanged if there are none. */
ml_status ml_rewards_open_for(ml_rewards **out, ml_arena *a, const ml_run_opts *c,
                              ml_err *err);

#endif
