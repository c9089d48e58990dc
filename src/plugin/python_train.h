/* python_train.h - extensions of training (miles/plugin.h) that are Python functions: losses,
 * corrections, reducers, advantage estimators and hooks.
 *
 * Arrays pass through memory that the worker shares with this program: the function's
 * tensors are views of it.  As in python_extensions.h, the worker is global state.
 *
 * thread: open and close before other threads start and after they ended. */
#ifndef ML_PLUGIN_PYTHON_TRAIN_H
#define ML_PLUGIN_PYTHON_TRAIN_H

#include "miles/plugin.h"
#include "plugin/python.h"

/* The extension of this kind whose function a flag names; NULL: Python cannot be used.  The
 * function is one of those of the worker. */
const miles_extension *ml_python_train_extension(miles_kind kind,
                                                 const ml_python_function *fn);

/* Starts the worker of all these functions, if there are any; one that runs is ended. */
ml_status ml_python_train_open(ml_str args, ml_err *err);
void ml_python_train_close(void); /* also if none is open */

#endif
