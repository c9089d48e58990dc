/* rollouts.h - how a run makes its samples: sampling parameters, rewards, environment, and
 * the kind of rollout (synchronous, prefetched, asynchronous, or a user's extension).
 *
 * thread: the command's. */
#ifndef ML_RUN_ROLLOUTS_H
#define ML_RUN_ROLLOUTS_H

#include "rl/rollout/async.h"
#include "rl/rollout/prefetch.h"
#include "rl/rollout/rollout_custom.h"
#include "rl/rollout/rollout_gen.h"
#include "run/opts.h"
#include "run/run.h"

typedef struct ml_rollouts {
    ml_rewards *rewards;
    ml_turns *turns;          /* NULL: single-turn answers */
    ml_worker_pool *generate; /* of a Python function that generates; NULL: none */
    bool group_rewards;       /* graded once all answers to a prompt are finished */
    ml_gen_rollout sync;
    ml_custom_rollout custom;   /* replaces it, if there is an extension */
    ml_prefetch *prefetch;      /* NULL: none */
    ml_async *async;            /* NULL: none */
    const miles_buffer *buffer; /* of the async rollout; NULL: none */
} ml_rollouts;

/* The run is open; the arena must outlive it. */
ml_status ml_rollouts_open(ml_rollouts *r, ml_arena *a, const ml_loop_extensions *e,
                           ml_train_run *run, const ml_run_opts *c, ml_err *err);
void ml_rollouts_close(ml_rollouts *r); /* zeros, and after a failed open */

/* The generator of `ctx` has started: *out is the rollout of the mode.  say: reports of
 * the async rollout. */
ml_status ml_rollouts_start(ml_rollouts *r, ml_rollout *out, const ml_gen_ctx *ctx,
                            ml_train_run *run, const ml_run_opts *c,
                            void (*say)(const char *), ml_err *err);
/* Stops generation in progress. */
void ml_rollouts_stop(ml_rollouts *r);

/* Opens the configured environment, or the workers of a function that generates; *out and
 * *generate are unchanged if there is none. */
ml_status ml_turns_open_for(ml_turns **out, ml_worker_pool **generate,
                            const ml_train_run *run, ml_arena *a, const ml_run_opts *c,
                            ml_err *err);

/* A user's environment gives rewards; a sample for which it does not has reward 0, unless
 * another reward is configured. */
bool ml_reward_from_environment(const ml_run_opts *c);

/* ML_EUSAGE if no flag names a reward and a row of the data does not either. */
ml_status ml_reward_check(const ml_run_opts *c, const ml_dataset *ds, ml_err *err);

/* Resolves --custom-rm-path and --rm-type.  Strings point into `a`, argv or the
 * environment. */
ml_status ml_reward_opts_resolve(ml_reward_opts *out, const ml_run_opts *c, ml_arena *a,
                                 ml_err *err);
/* The models of rewards on rank 0, those of --reward-model-path and --judge-model-path, if there
 * are any: reward.model, reward.judge.engine. */
ml_status ml_reward_models_open(ml_run_opts *c, ml_err *err);
ml_status ml_reward_models_start(const ml_reward_opts *o, ml_err *err);
void ml_reward_models_stop(const ml_reward_opts *o); /* frees their memory until a start */
void ml_reward_models_close(ml_reward_opts *o);
/* Their memory on the device of the run. */
size_t ml_reward_models_bytes(const ml_run_opts *c);
/* Opens them; *out is unchanged if there are none. */
ml_status ml_rewards_open_for(ml_rewards **out, ml_arena *a, const ml_run_opts *c,
                              ml_err *err);

#endif
