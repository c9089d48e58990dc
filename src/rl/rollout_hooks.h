/* rollout_edges.h - a rollout, and what others want done with its samples.
 *
 * After a round is collected, in this order: a recorded round takes its place, log-probs are
 * computed again by the engine, rewards are shaped, answers are taken out of
 * training, metrics are added, and all answers are shown.  Rounds that are recorded or
 * replayed pass through it as well.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_HOOKS_H
#define ML_RL_ROLLOUT_HOOKS_H

#include "miles/plugin.h"
#include "rl/gen_score.h"
#include "rl/rollout.h"

/* A recorded round in place of the one that was made, which must resemble it. */
typedef struct ml_inject {
    const char *template; /* see round_path.h; NULL: nothing is injected */
    int64_t from;         /* the first round */
    double least;         /* share of samples that must have the same tokens */
    int64_t n_vocab;      /* tokens of the model */
} ml_inject;

typedef struct ml_rollout_hooks {
    ml_rollout inner;
    ml_inject inject;
    ml_scorer rescore; /* gen NULL: log-probs stay those of drawing */
    /* NULL: none */
    const miles_reward_post *post;
    const miles_sample_filter *filter;
    const miles_metrics *metrics;
    const miles_samples_hook *hook;
} ml_rollout_hooks;

/* The inner rollout with these edges around it. */
ml_rollout ml_rollout_with_hooks(ml_rollout_hooks *e);

/* Puts the recorded round in place of what was made. */
ml_status ml_rollout_inject(const ml_inject *from, int64_t rollout, ml_rollout_batch *h,
                            ml_arena *a, ml_err *err);

/* Adds the row's numbers; also for evaluations, whose set has a name, else "". */
ml_status ml_metrics_run(const miles_metrics *m, ml_metrics *out, const ml_sample *const *s,
                         int64_t n, int64_t rollout, const char *set, ml_err *err);

#endif
