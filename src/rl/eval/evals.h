/* evals.h - evaluates the generator's weights: answers data sets and grades the answers.
 *
 * All prompts of a set are submitted at once.  Random numbers depend only on the seed and
 * the sample's position in its set, so two evaluations of the same weights are equal.
 *
 * thread: the loop's. */
#ifndef ML_RL_EVAL_EVALS_H
#define ML_RL_EVAL_EVALS_H

#include "rl/record/metrics.h"
#include "rl/observer.h"
#include "rl/rollout/group.h"
#include "rl/record/run_store.h"

typedef struct ml_eval_set {
    const char *name;
    ml_dataset dataset;
    ml_sampling how;
    int32_t n_per_prompt;
    ml_rewards *rewards;      /* of this set only; NULL: gen_ctx.rewards of ml_evals */
    ml_turns *turns;          /* likewise */
    ml_worker_pool *generate; /* likewise */
} ml_eval_set;

typedef struct ml_evals {
    ml_gen_ctx gen_ctx;
    ml_eval_set *set; /* [n] */
    int32_t n;
    bool pass_rates;              /* compute pass@k, too */
    const miles_metrics *metrics; /* additional metrics; NULL: none */
    const miles_eval *ext;        /* runs the whole evaluation; NULL: evaluate all sets */
    bool keep_answers;            /* return the answers, to be recorded */
    int64_t rollout;              /* for the extension; -1: not known */
} ml_evals;

/* The result of an evaluation. */
typedef struct ml_eval_scores {
    ml_metrics metrics;       /* eval/NAME, eval/NAME-truncated_ratio, ... */
    ml_eval_answers *answers; /* of all sets if keep_answers; in the arena of metrics */
} ml_eval_scores;

/* The caller has initialized out->metrics. */
ml_status ml_evals_run(const ml_evals *e, ml_eval_scores *out, ml_err *err);

/* Emits ML_ON_EVALUATED for this rollout. */
ml_status ml_evals_report(const ml_eval_scores *scores, int64_t rollout, ml_arena *a,
                          const ml_observers *to, ml_err *err);
/* Evaluates, then reports. */
ml_status ml_evals_observe(const ml_evals *e, int64_t rollout, const ml_observers *to,
                           ml_err *err);

/* How the loop evaluates the published weights. */
typedef struct ml_eval_driver {
    void *self;
    /* Reports the scores now, or when a later call finds them finished. */
    ml_status (*run)(void *self, int64_t rollout, ml_err *err);
    /* Waits for all scores and reports them.  NULL: run reports them. */
    ml_status (*wait)(void *self, ml_err *err);
} ml_eval_driver;

#endif
