/* reward_opts.h - the reward options of a command line.
 *
 * thread: before other threads start. */
#ifndef ML_RUN_REWARD_OPTS_H
#define ML_RUN_REWARD_OPTS_H

#include "base/arena.h"
#include "run/opts.h"
#include "rl/reward/rewards.h"

/* Resolves --custom-rm-path and --rm-type.  Strings point into `a`, argv or the
 * environment. */
ml_status ml_reward_opts_init(ml_reward_opts *out, const ml_run_opts *c, ml_arena *a,
                              ml_err *err);

#endif
