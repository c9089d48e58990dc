/* reward_check.h - whether every sample of a run will have a reward, known before weights are
 * read.
 *
 * thread: the command's. */
#ifndef ML_CLI_REWARD_CHECK_H
#define ML_CLI_REWARD_CHECK_H

#include "cli/config.h"
#include "rl/dataset.h"

/* An environment of the user's own gives rewards; one that does not for a sample means 0,
 * unless another reward is named. */
bool ml_reward_from_environment(const ml_config *c);

/* ML_EUSAGE when no flag names a reward and a row of the data does not, either. */
ml_status ml_reward_check(const ml_config *c, const ml_dataset *ds, ml_err *err);

#endif
