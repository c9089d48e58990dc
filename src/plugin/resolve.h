/* resolve.h - from the options of an algorithm to the recipe that runs.
 *
 * thread: before there are others. */
#ifndef ML_PLUGIN_RESOLVE_H
#define ML_PLUGIN_RESOLVE_H

#include "base/err.h"
#include "rl/recipe.h"

/* Finds the rows, derives what follows from them, and refuses what contradicts itself:
 * ML_EUSAGE with the flags' names. */
ml_status ml_recipe_resolve(ml_recipe *out, const ml_algo_opts *opts, ml_err *err);

#endif
