/* resolve.h - derives the recipe of a run from the options of an algorithm.
 *
 * thread: before other threads start. */
#ifndef ML_RUN_RESOLVE_H
#define ML_RUN_RESOLVE_H

#include "base/err.h"
#include "rl/recipe.h"

/* Finds the extensions, derives dependent settings, and rejects options that the
 * estimator cannot use: ML_EUSAGE with the flags' names. */
ml_status ml_recipe_resolve(ml_recipe *out, const ml_algo_opts *opts, ml_err *err);

#endif
