/* python.h - user functions in Python, which run in worker processes (base/worker_pool.h).
 *
 * share/python has the worker's program and the package `miles`, whose modules user code
 * imports.  A worker imports all functions of a pool before its first call.
 *
 * thread: before other threads start. */
#ifndef ML_PLUGIN_PYTHON_H
#define ML_PLUGIN_PYTHON_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/worker_pool.h"

/* Whether path names Python: "file.py", "file.py:name", "package.module.name" or
 * "package.module:name". */
bool ml_python_is(const char *path);

typedef struct ml_python_function {
    const char *flag; /* that names it, without dashes */
    const char *path;
    const char *fallback; /* the name in "file.py"; NULL: it must be given */
    const char *role; /* the signature, under which it is called; NULL: that of the flag */
} ml_python_function;

/* The workers of these functions, which get `args`, the flags of the run as a JSON object.
 * try: the functions are imported once in a temporary process, so that a syntax error or a
 * failing import is reported here, before anything else is loaded.  Errors begin with the
 * flag. */
ml_status ml_python_workers(ml_worker_pool_opts *out, ml_arena *a,
                            const ml_python_function *fn, int n, ml_str args, bool try,
                            ml_err *err);

#endif
