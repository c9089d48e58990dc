/* advantages.h - from rewards to advantages and returns, once per rollout.
 *
 * KL penalty, the recipe's estimator, on-policy distillation, whitening: in this order.
 * All of it uses the numbers the rollout began with; nothing here has a derivative.
 *
 * thread: any. */
#ifndef ML_RL_ADVANTAGE_ADVANTAGES_H
#define ML_RL_ADVANTAGE_ADVANTAGES_H

#include "base/arena.h"
#include "base/err.h"
#include "rl/recipe.h"

typedef struct ml_advantages {
    double **advantage, **returns; /* [n sample][n token] */
    double **opd_reverse_kl;       /* the same; NULL without distillation */
} ml_advantages;

/* Samples must have the reward and whatever columns the recipe reads.  Results live in a. */
ml_status ml_advantages_compute(ml_advantages *out, ml_arena *a, const ml_recipe *r,
                                const miles_batch *batch, ml_err *err);

/* A number for each token of each sample, 0. */
double **ml_columns_new(ml_arena *a, const miles_batch *batch);

#endif
