/* worker_command.h - command lines of worker processes.
 *
 * A Python file is served by a script that is embedded in the program and sent to the
 * interpreter over its standard input (worker_script.h).
 *
 * thread: before other threads start. */
#ifndef ML_PLUGIN_WORKER_COMMAND_H
#define ML_PLUGIN_WORKER_COMMAND_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/line_process.h"

/* Whether path names a worker: "cmd:" and a command line, "file.py" or "file.py:name". */
bool ml_worker_command_is(const char *path);

/* The worker command for such a path.  `option` selects the kind of function in the
 * script; NULL: a reward.  A Python file is imported once in a temporary process, so that
 * a file that cannot be read, a syntax error and a failing import are reported here,
 * before anything else is loaded.  Errors begin with the flag. */
ml_status ml_worker_command_find(ml_worker_command *out, ml_arena *a, const char *option,
                                 const char *path, const char *flag, ml_err *err);

/* The script with an option, a Python file, or both; nothing is started. */
ml_worker_command ml_python_command(ml_arena *a, const char *option, const char *path);

#endif
