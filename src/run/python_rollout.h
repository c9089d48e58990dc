/* python_rollout.h - a rollout whose samples a user's Python function makes
 * (--rollout-function-path), with prompts of the run and requests to its engine; and training
 * data that such a function makes of samples.
 *
 * thread: the loop's; prompts are read on the thread of the function's pool meanwhile. */
#ifndef ML_RUN_PYTHON_ROLLOUT_H
#define ML_RUN_PYTHON_ROLLOUT_H

#include "rl/rollout/rollout_custom.h"

/* The same parts as of a rollout of an extension; ext is not called. */
ml_rollout ml_rollout_python(ml_custom_rollout *r);

/* Replaces the samples of a batch by the rows that --custom-convert-samples-to-train-data-path
 * makes of them.  As ml_rollout_hooks.convert. */
ml_status ml_python_convert(int64_t rollout, int64_t n_vocab, ml_rollout_batch *h,
                            ml_arena *a, ml_err *err);

#endif
