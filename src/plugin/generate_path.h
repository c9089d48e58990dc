/* generate_path.h - resolves --custom-generate-function-path before a run starts.
 *
 * thread: before other threads start. */
#ifndef ML_PLUGIN_GENERATE_PATH_H
#define ML_PLUGIN_GENERATE_PATH_H

#include "rl/env/environment.h"

/* Fills out->row or out->command, or neither if an answer is a single turn.  `path` is a
 * built-in name, "./my.so:name", "./env.py" or "./env.py:name", "cmd:" and a command
 * line, or Miles' path of its single-turn or multi-turn function; the latter runs the
 * tools in `tools`; NULL: none.  Strings are allocated in `a`. */
ml_status ml_generate_path_resolve(ml_environment_opts *out, ml_arena *a, const char *path,
                                   const char *tools, ml_err *err);

#endif
