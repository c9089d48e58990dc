/* reward_path.h - resolves --custom-rm-path and --rm-type before a run starts.
 *
 * thread: before other threads start. */
#ifndef ML_PLUGIN_REWARD_PATH_H
#define ML_PLUGIN_REWARD_PATH_H

#include "base/arena.h"
#include "rl/reward/rewards.h"

/* Fills opts->command, row or ifbench_command.  `path` is "./my.so:name", "./reward.py"
 * or "./reward.py:name", or "cmd:" and a command line that answers JSON lines; NULL:
 * none.  Strings are allocated in `a`. */
ml_status ml_reward_path_resolve(ml_reward_opts *opts, ml_arena *a, const char *path,
                                 ml_err *err);

#endif
