/* reward_check.h - checks that every sample of a run will have a reward, before weights
 * are read.
 *
 * thread: the command's. */
#ifndef ML_CLI_REWARD_CHECK_H
#define ML_CLI_REWARD_CHECK_H

#include "cli/config.h"
#include "rl/data/dataset.h"

/* A user's environment gives rewards; a sample for which it does not has reward 0, unless
 * another reward is configured. */
bool ml_reward_from_environment(const ml_config *c);

/* ML_EUSAGE if no flag names a reward and a row of the data does not either. */
ml_status ml_reward_check(const ml_config *c, const ml_dataset *ds, ml_err *err);

#endif
