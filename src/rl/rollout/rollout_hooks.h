/* rollout_hooks.h - a rollout followed by the extensions that process its samples.
 *
 * After a batch is collected, in this order: a recorded batch replaces it, the engine
 * recomputes log-probs, teachers score the samples, rewards are shaped, samples are removed from training, metrics are
 * added, the hook receives all samples, and the batch is converted to training data.  Batches
 * that are recorded or replayed are processed as well.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_ROLLOUT_HOOKS_H
#define ML_RL_ROLLOUT_ROLLOUT_HOOKS_H

#include "miles/plugin.h"
#include "rl/learn/distill.h"
#include "rl/rollout/reward_shaping.h"
#include "rl/rollout/rollout.h"

/* A recorded batch that replaces the generated one, which must resemble it. */
typedef struct ml_inject {
    const char *template; /* see round_path.h; NULL: nothing is injected */
    int64_t from;         /* the first rollout to replace */
    double least;         /* minimum share of samples that must have the same tokens */
    int64_t n_vocab;      /* vocabulary size of the model */
} ml_inject;

typedef struct ml_rollout_hooks {
    ml_rollout inner;
    ml_inject inject;
    ml_scorer rescore; /* gen NULL: keep the log-probs recorded while sampling */
    ml_distill distill;
    ml_reward_shaping shaping;
    int64_t n_critic_only; /* first rollouts, which need no teacher */
    /* NULL: none */
    const miles_reward_post *post;
    const miles_sample_filter *filter;
    const miles_metrics *metrics;
    const miles_samples_hook *hook;
    /* Makes the training data of the batch, in place of its samples. */
    ml_status (*convert)(int64_t rollout, int64_t n_vocab, ml_rollout_batch *h, ml_arena *a,
                         ml_err *err);
} ml_rollout_hooks;

/* Returns the inner rollout wrapped with these extensions. */
ml_rollout ml_rollout_with_hooks(ml_rollout_hooks *e);

/* Replaces the generated batch with the recorded one. */
ml_status ml_rollout_inject(const ml_inject *from, int64_t rollout, ml_rollout_batch *h,
                            ml_arena *a, ml_err *err);

/* Adds the metrics of the extension.  Also used for evaluations: `set` is the data set's
 * name, otherwise "". */
ml_status ml_metrics_run(const miles_metrics *m, ml_metrics *out, const ml_sample *const *s,
                         int64_t n, int64_t rollout, const char *set, ml_err *err);

#endif
