/* evals.h - how good the weights are that generate: data sets answered and scored.
 *
 * All prompts of a set are asked at once; their random numbers are those of the seed and
 * the sample's place in its set, so that two evaluations of the same weights are equal.
 *
 * thread: the loop's. */
#ifndef ML_RL_EVALS_H
#define ML_RL_EVALS_H

#include "rl/metrics.h"
#include "rl/gen_task.h"
#include "rl/run_store.h"

typedef struct ml_eval_set {
    const char *name;
    ml_dataset dataset;
    ml_sampling how;
    int32_t n_per_prompt;
    ml_rewards *rewards; /* of its own; NULL: those of the evaluations */
    ml_turns *turns;     /* likewise */
} ml_eval_set;

typedef struct ml_evals {
    ml_gen_ctx asker;
    ml_eval_set *set; /* [n] */
    int32_t n;
    bool pass_rates;              /* pass@k, too */
    const miles_metrics *metrics; /* further ones; NULL: none */
    const miles_eval *row;        /* makes the whole evaluation; NULL: all sets are asked */
    bool keep_answers;            /* somebody wants to record them */
} ml_evals;

/* What an evaluation found. */
typedef struct ml_eval_scores {
    ml_metrics figures; /* eval/NAME and its relatives */
    ml_eval_answers
        *answers; /* of all sets, where they are kept; in the arena of figures */
} ml_eval_scores;

/* `evals` is an ml_evals, as ml_train_loop wants it; the figures were initialised. */
ml_status ml_evals_run(void *evals, ml_eval_scores *out, ml_err *err);

#endif
