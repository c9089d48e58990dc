/* worker_command.h - command lines of worker processes.
 *
 * A Python file is served by a shim that is shipped with the program: beside it as built,
 * where it is installed, or in $MILES_SHARE.
 *
 * thread: before there are others. */
#ifndef ML_PLUGIN_WORKER_COMMAND_H
#define ML_PLUGIN_WORKER_COMMAND_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"

/* Does it name a worker: "cmd:" and a command line, "file.py" or "file.py:name"? */
bool ml_worker_command_is(const char *path);

/* What /bin/sh is given for such a path.  `option` tells the shim what the function is; NULL: a
 * reward.  A file that cannot be read is an error that begins with the flag. */
ml_status ml_worker_command(const char **out, ml_arena *a, const char *option,
                            const char *path, const char *flag, ml_err *err);

/* The shim with an option, a Python file, or both. */
const char *ml_python_command(ml_arena *a, const char *option, const char *path);

#endif
