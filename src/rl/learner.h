/* learner.h - what a batch of samples teaches: rewards to advantages to optimizer steps.
 *
 * In Miles' order: rewards are normalised inside their groups, the reference and the
 * teacher score the samples, then the policy as it was and the critic, advantages are
 * computed once, and the samples are trained on, one optimizer step after the other: by the
 * critic, then by the actor.
 *
 * Where a token was drawn with the very weights that a step trains, the log-prob that the
 * step's own forward computes must be the one the token was drawn with, to the bit; if
 * it is not, the run fails.  Tokens of older weights are counted.  The pass that would
 * compute the old log-probs is left out exactly when all tokens are of the weights at
 * hand, or when what was drawn stands for it.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LEARNER_H
#define ML_RL_LEARNER_H

#include "engine/gen.h"
#include "rl/metrics.h"
#include "rl/hooks.h"
#include "rl/recipe.h"
#include "rl/sample.h"
#include "rl/coverage.h"
#include "train/trainer.h"

typedef struct ml_learner {
    const ml_recipe *recipe;
    ml_trainer *trainer;
    const ml_weights *weights; /* the trainer's */
    const ml_hooks *hooks;     /* NULL: nobody is told */
    ml_weights *ref;           /* of the same spec; NULL: none */
    const ml_weights *teacher; /* the same */
    ml_gen *teachers;          /* a teacher behind HTTP; NULL: none */
    ml_trainer *critic;        /* NULL: none */
    int64_t n_critic_only;     /* rounds in which the critic alone learns */
    int64_t ref_interval;      /* rounds after which the reference is the actor; 0: never */
    bool keep_old_actor;       /* old log-probs are of the weights that drew */
    bool reset_optimizer;      /* moments begin anew in each round */
    /* Choices that the steps, and the pass for old log-probs, take: the rollout's, or those that
     * this pass makes, which is then never left out. */
    bool replay[ML_N_ROUTING], record[ML_N_ROUTING];
    bool on_policy; /* a token of other weights, or without log-prob, ends the run */
    bool entropy;   /* of the policy before it learns, as a column and a figure */
    const char *record_path; /* where what is trained on is written (round_path.h); NULL */
    void (*stepped)(void *ud); /* after each step of the actor; NULL: nobody looks */
    void *stepped_ud;
    ml_coverage *witness; /* NULL: none */
    ml_work_count *tally; /* of micro-batches; NULL: nobody counts */
} ml_learner;

/* What one optimizer step did. */
typedef struct ml_step_metrics {
    ml_step_result step, critic; /* their losses are the recipe's */
    bool has_step, has_critic;
    ml_metrics figures; /* train/... */
} ml_step_metrics;

typedef struct ml_learn_result {
    ml_metrics rollout;    /* rollout/...: means over the samples */
    ml_step_metrics *step; /* [n_step] */
    int32_t n_step;
    int64_t n_token, n_stale; /* trained tokens; those of other weights at the start */
    double max_diff;          /* |rollout - trainer| over tokens of the same weights: 0 */
    double score_s, train_s;  /* seconds of the passes that only score, and of the steps */
} ml_learn_result;

/* Trains on the samples of a round, which all have rewards.  Results live in the arena. */
ml_status ml_learn(ml_learner *l, int64_t rollout, ml_learn_result *out, ml_arena *a,
                   const ml_sample *const *sample, int64_t n, ml_err *err);

#endif
