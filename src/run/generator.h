/* generator.h - generation of tokens for a run: the engine in this process, its backend
 * and its memory; or engines in other processes.  If a run has several ranks, their engines
 * have one rank or several each, and rank 0 sends requests to all of them.
 *
 * thread: the command's. */
#ifndef ML_RUN_GENERATOR_H
#define ML_RUN_GENERATOR_H

#include "gen/local.h"
#include "gen/supervisor.h"
#include "io/end_tokens.h"
#include "model/moves.h"
#include "run/opts.h"
#include "run/run.h"
#include "run/run_router.h"

/* An engine is killed after the weights of a rollout were published. */
typedef struct ml_fault {
    int64_t rollout;
    int32_t engine;
} ml_fault;

typedef struct ml_faults {
    const ml_fault *fault; /* [n] */
    int32_t n;
    int64_t after; /* faults up to this rollout have been injected */
} ml_faults;

/* What rollouts and evaluations will request. */
typedef struct ml_demand {
    /* Tokens of a prompt and its answer: an upper bound, and a typical number.  ML_NONE:
     * not known. */
    int64_t longest, usual;
    int64_t n_running; /* concurrent requests, at most */
    bool evaluates;
} ml_demand;

typedef struct ml_generator {
    ml_arena arena;
    ml_train_run *run;
    ml_backend be; /* of the engine; its threads are idle while the trainer's work */
    ml_end_tokens eos;
    const ml_spec *spec; /* of the engine in this process */
    ml_spec *part;       /* [engine_size] the specs of an engine's ranks; NULL: one rank */
    ml_moves_opts moves; /* from the trainer's ranks to the engines', if they move */
    ml_moves_opts adapter; /* likewise the adapter that is trained; zeros: none */
    ml_comm *group;        /* this rank's engine, for its main threads; NULL: one rank */
    ml_comm *steps;        /* the same, for the engines' threads */
    ml_engine_opts engine;
    ml_grammar_cache *grammars; /* of requests of agents and functions; NULL: none */
    bool offload_train, offload_rollout; /* release their memory alternately */
    /* On the host the KV cache and the activations of training always do so: new pages take
     * little time. */
    bool turns;
    const ml_reward_opts *rewards; /* whose models do so, too */
    bool external;                 /* engines that run already */
    int32_t n_engine;              /* engine processes started by this run */
    /* For engines in other processes: the directory of published weights, and where an
     * engine keeps the copy that deltas change; NULL: none. */
    const char *weight_dir, *copy_dir;
    ml_supervisor *supervisor; /* of the engine processes; NULL: not yet, or none */
    ml_faults faults;          /* to be injected into them */
    bool pauses;               /* the engine is paused during training */
    bool leads;                /* the engine's first rank, or its only one */
    ml_gen *local;             /* the engine in this process; NULL: none */
    bool serves; /* the user's functions send requests to the engine; set before start */
    struct ml_rank_engine *served; /* to rank 0 or to these functions; NULL: to neither */
    struct ml_session_server *sessions; /* NULL: none */
    ml_run_router *router;              /* in front of the engines; NULL: none */
    ml_gen *gen; /* over all engines, or the one above; NULL: rank 0 has it */
} ml_generator;

/* Finds configuration errors, before weights are loaded.  The run is open. */
ml_status ml_generator_open(ml_generator *g, ml_train_run *run, const ml_demand *demand,
                            const ml_run_opts *c, ml_err *err);
/* The engine's options and the size of its KV cache, after ml_train_run_measure. */
ml_status ml_generator_size(ml_generator *g, const ml_demand *demand, const ml_run_opts *c,
                            ml_err *err);
/* Stop ends the engines, so that their weights can be freed; close frees the rest.  Zeros
 * are allowed, and a failed open. */
void ml_generator_stop(ml_generator *g);
void ml_generator_close(ml_generator *g);

/* Whether generation has its own set of weights in this process. */
bool ml_generator_own_set(const ml_run_opts *c);

/* The number of threads for generation, or for training. */
int ml_generator_threads(const ml_run_opts *c, bool generates);

/* Adds the engine's memory besides the weights to the options of the run, for its plan. */
ml_status ml_generator_measure(ml_generator *g, ml_err *err);

/* Starts the engine on these weights, or engine processes; the run has started. */
ml_status ml_generator_start(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                             ml_err *err);

/* Generation and training use their memory alternately, with --offload or in part (turns):
 * frees that of the other phase, then allocates that of the next.  Saving needs no activations. */
typedef enum ml_memory_phase {
    ML_PHASE_ROLLOUT,
    ML_PHASE_TRAIN,
    ML_PHASE_SAVE
} ml_memory_phase;
ml_status ml_generator_enter(ml_generator *g, ml_memory_phase next, ml_err *err);

/* Called after the weights of a rollout were published: injects the faults that are due. */
void ml_generator_published(ml_generator *g);

/* --- engines.c: engines in other processes, of miles serve --- */

/* Connects to --rollout-external-engine-addrs; all engines must be reachable. */
ml_status ml_engines_connect(ml_gen **out, ml_arena *a, const ml_spec *spec,
                             const ml_run_opts *c, ml_err *err);

/* Starts g->n_engine processes with the sizes in g->engine, and opens g->gen over them;
 * they do not have the run's weights yet. */
ml_status ml_engines_start(ml_generator *g, const ml_run_opts *c, ml_err *err);

/* Opens g->router, if the run has several engines, was told to, or its functions send
 * requests. */
ml_status ml_engines_route(ml_generator *g, const ml_run_opts *c, ml_err *err);

/* The same for n processes that only evaluate, with this number of threads each; `dir` has
 * their weights and logs. */
ml_status ml_engines_start_for_evals(ml_supervisor **supervisor, ml_gen **gen,
                                     ml_generator *g, const ml_run_opts *c, const char *dir,
                                     ml_err *err);

/* --- rank_engines.c: the engines of the ranks of a run --- */

/* Serves g->local, on the first rank of an engine, to rank 0, which opens g->gen over all
 * engines.  w: the engine's first weights.  Collective. */
ml_status ml_rank_engine_open(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                              ml_err *err);
/* Serves g->local to functions of the user in other processes of this machine. */
ml_status ml_rank_engine_serve(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                               ml_err *err);
int ml_rank_engine_port(const struct ml_rank_engine *e);
const char *ml_rank_engine_key(const struct ml_rank_engine *e);
/* Stop ends the server's thread; the engine is closed before the rest.  NULL is allowed. */
void ml_rank_engine_stop(struct ml_rank_engine *e);
void ml_rank_engine_close(struct ml_rank_engine *e);

/* --- faults.c --- */

/* Parses --ci-ft-test-actions, in the arena; NULL: none. */
ml_status ml_faults_read(ml_faults *out, ml_arena *a, const char *json, int32_t n_engine,
                         ml_err *err);

/* Called after the weights of this rollout were published: injects the faults that are
 * due. */
void ml_faults_happen(ml_faults *f, ml_supervisor *supervisor, int64_t rollout);

#endif
