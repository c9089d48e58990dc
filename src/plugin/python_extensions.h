/* python_extensions.h - extensions of the loop (miles/plugin.h) that are Python functions
 * with Miles' signatures.
 *
 * The functions of an extension have no argument for a context: the workers of the process's
 * one run are global state, set before other threads start.
 *
 * thread: open and close before other threads start and after they ended. */
#ifndef ML_PLUGIN_PYTHON_EXTENSIONS_H
#define ML_PLUGIN_PYTHON_EXTENSIONS_H

#include "base/json.h"
#include "miles/plugin.h"
#include "plugin/python.h"

/* The extension of this kind whose function a flag names; NULL: Python cannot be used. */
const miles_extension *ml_python_extension(miles_kind kind, const ml_python_function *fn);

/* Starts the worker that runs these functions. */
ml_status ml_python_extensions_open(const ml_python_function *fn, int n, ml_str args,
                                    ml_err *err);
void ml_python_extensions_close(void); /* also if none is open */

/* Calls the function of a flag; `more` continues the members of the message.  The answer and
 * its text are in the arena. */
ml_status ml_python_extensions_call(const char *flag, const char *more, ml_arena *a,
                                    const ml_json **answer, ml_str *text, ml_err *err);

/* Whether the extension is a Python function. */
bool ml_python_extension_is(const miles_extension *e);

#endif
