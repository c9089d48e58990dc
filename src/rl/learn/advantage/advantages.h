/* advantages.h - from rewards to advantages and returns, once per rollout.
 *
 * The steps, in this order: KL penalty, the recipe's estimator, on-policy distillation,
 * whitening.  All inputs are constants computed before the first train step; nothing here
 * is differentiated.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_ADVANTAGE_ADVANTAGES_H
#define ML_RL_LEARN_ADVANTAGE_ADVANTAGES_H

#include "base/arena.h"
#include "base/err.h"
#include "rl/recipe.h"

typedef struct ml_advantages {
    double **advantage, **returns; /* [n sample][n token] */
    double **opd_reverse_kl;       /* the same; NULL without distillation */
} ml_advantages;

/* Samples must have the reward and every field the recipe reads.  Results are allocated in
 * a. */
ml_status ml_advantages_compute(ml_advantages *out, ml_arena *a, const ml_recipe *r,
                                const miles_batch *batch, ml_err *err);

/* Allocates a number for each token of each sample, set to 0. */
double **ml_columns_new(ml_arena *a, const miles_batch *batch);

#endif
