/* train_gen.h - what miles train generates with: engine, rewards, evaluations.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_GEN_H
#define ML_CLI_TRAIN_GEN_H

#include "cli/config.h"
#include "cli/train_faults.h"
#include "engine/supervisor.h"
#include "engine/local.h"
#include "engine/remote.h"
#include "io/end_tokens.h"
#include "rl/prefetch.h"
#include "rl/eval_queue.h"
#include "rl/async.h"
#include "rl/rollout_gen.h"
#include "rl/rollout_custom.h"
#include "rl/weight_stream.h"

typedef struct ml_train_gen {
    ml_arena arena;
    ml_train_run *run;
    ml_backend be; /* the engine's own; its threads rest while the trainer's work */
    ml_end_tokens eos;
    ml_engine_opts engine;
    ml_weights second; /* what generates while the trainer changes the run's; zeros: none */
    bool async;
    bool offload_train, offload_rollout; /* give their memory back in turns */
    bool own_set;                        /* generation has weights of its own */
    bool keeps_weights;                  /* and goes on with those it began with */
    const char *weight_dir;   /* where engines elsewhere find weights; NULL: it is here */
    ml_weight_stream *stream; /* what is written there; NULL: all of them, each time */
    ml_pull pull;             /* and where engines copy it to */
    int32_t n_engine;         /* processes of ours that generate */
    ml_faults faults;         /* of theirs, that the run is asked for */
    ml_supervisor *fleet;     /* they; NULL: not yet, or none */
    int64_t shard_bytes;      /* of a file of them */
    ml_gen *gen;
    ml_rewards *rewards;
    ml_turns *turns;    /* NULL: answers are one turn */
    bool group_rewards; /* graded when all answers to a prompt are there */
    ml_gen_rollout rollout;
    ml_custom_rollout row_rollout; /* in its place, where there is a row */
    ml_prefetch *ahead;            /* NULL: rounds are not made ahead */
    ml_async *flow;                /* NULL: nor all the time */
    const miles_buffer *buffer;    /* of the flow; NULL: none */
    ml_evals evals;
    ml_supervisor *eval_fleet; /* engines of the evaluations alone; NULL: none */
    ml_eval_queue *eval_queue; /* over them */
    int64_t eval_context;      /* of evaluations; 0: as of rollouts */
} ml_train_gen;

/* Whether generation has a set of weights beside the trainer's, in this process. */
bool ml_train_gen_own_set(const ml_config *c);

/* The threads that generate, or those that train. */
int ml_train_gen_threads(const ml_config *c, bool generates);

/* All that can be wrong is found here, before weights are loaded.  The run is open. */
ml_status ml_train_gen_open(ml_train_gen *out, const ml_config *c,
                            const ml_loop_extensions *edges, ml_train_run *run,
                            ml_err *err);
void ml_train_gen_close(ml_train_gen *t); /* zeros, and what failed to open, are fine */

/* Rewards and the environment that the configuration names; *out stays when it names none. */
ml_status ml_train_rewards_open(ml_rewards **out, ml_arena *a, const ml_config *c,
                                ml_err *err);
ml_status ml_train_turns_open(ml_turns **out, ml_train_gen *t, const ml_config *c,
                              ml_err *err);

/* Tells the run what the engine will take beside the weights. */
ml_status ml_train_gen_bytes(ml_train_gen *t, ml_err *err);

/* The engine, on the weights of the run, which has started, or on a copy of them; or engines
 * that are processes. */
ml_status ml_train_gen_start(ml_train_gen *t, const ml_config *c, ml_err *err);

/* For ml_train_loop; ud is an ml_train_gen. */
ml_status ml_train_gen_turn(void *ud, bool trains, ml_err *err);
ml_status ml_train_gen_publish(void *ud, const ml_weights *w, ml_err *err);

#endif
