/* train_gen.h - generation in miles train: engine, rewards, evaluations.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_GEN_H
#define ML_CLI_TRAIN_GEN_H

#include "cli/config.h"
#include "cli/train_faults.h"
#include "gen/supervisor.h"
#include "gen/local.h"
#include "gen/remote.h"
#include "io/end_tokens.h"
#include "rl/rollout/prefetch.h"
#include "rl/eval/eval_queue.h"
#include "rl/rollout/async.h"
#include "rl/rollout/rollout_gen.h"
#include "rl/rollout/rollout_custom.h"
#include "model/weight_stream.h"

typedef struct ml_train_gen {
    ml_arena arena;
    ml_train_run *run;
    ml_backend be; /* of the engine; its threads are idle while the trainer's work */
    ml_end_tokens eos;
    ml_engine_opts engine;
    ml_weights second; /* weights for generation while the trainer changes the run's;
                          zeros: none */
    bool async;
    bool offload_train, offload_rollout; /* release their memory alternately */
    bool own_set;                        /* generation has its own weights */
    bool keeps_weights;                  /* generation keeps its initial weights: nothing
                                            is published */
    const char *weight_dir;    /* published weights for engines in other processes; NULL:
                                 the engine is in this process */
    ml_weight_stream *stream;  /* writes deltas there; NULL: full weights, each time */
    ml_pull pull;              /* and where engines copy it to */
    int32_t n_engine;          /* engine processes started by this run */
    ml_faults faults;          /* to be injected into them */
    ml_supervisor *supervisor; /* supervisor of these processes; NULL: not yet, or none */
    int64_t shard_bytes;       /* of a file of published weights */
    ml_gen *gen;
    ml_rewards *rewards;
    ml_turns *turns;    /* NULL: single-turn answers */
    bool group_rewards; /* graded once all answers to a prompt are finished */
    ml_gen_rollout rollout;
    ml_custom_rollout custom_rollout; /* replaces the rollout, if there is an extension */
    ml_prefetch *prefetch;            /* NULL: no prefetch rollout */
    ml_async *async_rollout;          /* NULL: no async rollout */
    const miles_buffer *buffer;       /* of the async rollout; NULL: none */
    ml_evals evals;
    ml_supervisor *eval_supervisor; /* engines used only for evaluations; NULL: none */
    ml_eval_queue *eval_queue;      /* over them */
    int64_t eval_context;           /* of evaluations; 0: as in rollouts */
} ml_train_gen;

/* Whether generation has its own set of weights in this process. */
bool ml_train_gen_own_set(const ml_config *c);

/* The number of threads for generation, or for training. */
int ml_train_gen_threads(const ml_config *c, bool generates);

/* Finds all configuration errors, before weights are loaded.  The run is open. */
ml_status ml_train_gen_open(ml_train_gen *out, const ml_config *c,
                            const ml_loop_extensions *extensions, ml_train_run *run,
                            ml_err *err);
void ml_train_gen_close(ml_train_gen *t); /* allowed on zeros, and after a failed open */

/* Opens the configured rewards and environment; *out is unchanged if there are none. */
ml_status ml_train_rewards_open(ml_rewards **out, ml_arena *a, const ml_config *c,
                                ml_err *err);
ml_status ml_train_turns_open(ml_turns **out, ml_train_gen *t, const ml_config *c,
                              ml_err *err);

/* Reports to the run how much memory the engine needs besides the weights. */
ml_status ml_train_gen_bytes(ml_train_gen *t, ml_err *err);

/* Starts the engine on the weights of the run, which has started, or on a copy of them;
 * or starts engine processes. */
ml_status ml_train_gen_start(ml_train_gen *t, const ml_config *c, ml_err *err);

/* For ml_train_loop; ud is an ml_train_gen. */
ml_status ml_train_gen_turn(void *ud, bool trains, ml_err *err);
ml_status ml_train_gen_publish(void *ud, const ml_weights *w, ml_err *err);

#endif
