/* generate_path.h - what --custom-generate-function-path names, found before a run starts.
 *
 * thread: before there are others. */
#ifndef ML_PLUGIN_GENERATE_PATH_H
#define ML_PLUGIN_GENERATE_PATH_H

#include "rl/environment.h"

/* Fills out->row or out->command, or neither where an answer is one turn.  `path` is a
 * built-in name, "./my.so:name", "./env.py" or "./env.py:name", "cmd:" and a command line, or
 * Miles' path of its single-turn or multi-turn function, of which the second runs the tools
 * that `tools` names; NULL: none.  Strings live in `a`. */
ml_status ml_generate_path_resolve(ml_environment_opts *out, ml_arena *a, const char *path,
                                   const char *tools, ml_err *err);

#endif
