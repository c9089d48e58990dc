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
#include "base/json.h"
#include "base/worker_pool.h"
#include "miles/plugin.h"

/* Whether path names Python: "file.py", "file.py:name", "package.module.name" or
 * "package.module:name". */
bool ml_python_is(const char *path);

typedef struct ml_python_function {
    const char *flag; /* that names it, without dashes; it selects the signature */
    const char *path;
    const char *fallback; /* the name in "file.py"; NULL: it must be given */
} ml_python_function;

/* The workers of these functions, which get `args`, the flags of the run as a JSON object.
 * Errors begin with the flag. */
ml_status ml_python_workers(ml_worker_pool_opts *out, ml_arena *a,
                            const ml_python_function *fn, int n, ml_str args, ml_err *err);

/* Imports the functions once in a temporary process, so that a syntax error or a failing
 * import is reported before anything else is loaded.  *about, if not NULL, is what the
 * worker says about the function: "generate" if it is one of Miles' generate functions. */
ml_status ml_python_try(const ml_worker_pool_opts *opts, ml_arena *a, const char **about,
                        ml_err *err);

/* One worker for some functions, and its memory. */
typedef struct ml_python_worker {
    ml_arena arena; /* of the options, for the caller, too */
    ml_worker_pool *pool;
} ml_python_worker;

/* shared_bytes: of ml_worker_pool_shared; 0: none.  A worker that is open is closed first. */
ml_status ml_python_worker_open(ml_python_worker *w, const ml_python_function *fn, int n,
                                ml_str args, size_t shared_bytes, ml_err *err);
void ml_python_worker_close(ml_python_worker *w); /* also if it is not open */

/* A call of a function: begin, append members of the message to `text`, run, read the
 * answer, end. */
typedef struct ml_python_call {
    ml_arena arena; /* of the answer */
    ml_text text;
    ml_str source;
    const ml_json *answer; /* of the source */
} ml_python_call;

void ml_python_call_begin(ml_python_call *c, const char *flag);
/* 0: `answer` is the function's value; 1: err has a message. */
int ml_python_call_run(ml_python_call *c, ml_python_worker *w, miles_error *err);
void ml_python_call_end(ml_python_call *c);

#endif
