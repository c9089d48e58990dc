/* python_extensions.h - extensions of the loop (miles/plugin.h) that are Python functions
 * with Miles' signatures.
 *
 * The functions of an extension have no argument for a context: the workers of the process's
 * one run are global state, set before other threads start.
 *
 * thread: open and close before other threads start and after they ended. */
#ifndef ML_PLUGIN_PYTHON_EXTENSIONS_H
#define ML_PLUGIN_PYTHON_EXTENSIONS_H

#include "miles/plugin.h"
#include "plugin/python.h"

/* The extension of this kind whose function a flag names; NULL: Python cannot be used. */
const miles_extension *ml_python_extension(miles_kind kind, const ml_python_function *fn);

/* Starts the worker that runs these functions. */
ml_status ml_python_extensions_open(const ml_python_function *fn, int n, ml_str args,
                                    ml_err *err);
void ml_python_extensions_close(void); /* also if none is open */

#endif
