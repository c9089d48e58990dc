/* python_rollout.h - a rollout whose samples a user's Python function makes
 * (--rollout-function-path), with prompts of the run and requests to its engine.
 *
 * thread: the loop's; prompts are read on the thread of the function's pool meanwhile. */
#ifndef ML_RUN_PYTHON_ROLLOUT_H
#define ML_RUN_PYTHON_ROLLOUT_H

#include "rl/rollout/rollout_custom.h"

/* The same parts as of a rollout of an extension; ext is not called. */
ml_rollout ml_rollout_python(ml_custom_rollout *r);

#endif
