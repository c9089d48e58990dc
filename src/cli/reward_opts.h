/* reward_opts.h - the reward that a command line asks for.
 *
 * thread: before there are others. */
#ifndef ML_CLI_REWARD_OPTS_H
#define ML_CLI_REWARD_OPTS_H

#include "base/arena.h"
#include "cli/config.h"
#include "rl/reward/rewards.h"

/* Finds what --custom-rm-path and --rm-type name.  Strings live in `a`, argv or the
 * environment. */
ml_status ml_reward_opts_init(ml_reward_opts *out, const ml_config *c, ml_arena *a,
                              ml_err *err);

#endif
