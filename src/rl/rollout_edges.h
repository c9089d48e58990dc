/* rollout_edges.h - a rollout, and what others want done with its samples.
 *
 * After a round is collected, in this order: rewards are shaped, answers are taken out of
 * training, metrics are added, and all answers are shown.  Rounds that are recorded or
 * replayed pass through it as well.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_EDGES_H
#define ML_RL_ROLLOUT_EDGES_H

#include "miles/plugin.h"
#include "rl/rollout.h"

typedef struct ml_rollout_edges {
    ml_rollout inner;
    /* NULL: none */
    const miles_reward_post *post;
    const miles_sample_filter *filter;
    const miles_metrics *metrics;
    const miles_samples_hook *hook;
} ml_rollout_edges;

/* The inner rollout with these edges around it. */
ml_rollout ml_rollout_with_edges(ml_rollout_edges *e);

/* Adds the row's numbers; also for evaluations, whose set has a name, else "". */
ml_status ml_metrics_run(const miles_metrics *m, ml_figures *out, const ml_sample *const *s,
                         int64_t n, int64_t rollout, const char *set, ml_err *err);

#endif
