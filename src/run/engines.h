/* engines.h - engines in other processes: processes of miles serve that the run starts, or
 * servers that run already.
 *
 * thread: the command's. */
#ifndef ML_RUN_ENGINES_H
#define ML_RUN_ENGINES_H

#include "run/generator.h"

/* Connects to --rollout-external-engine-addrs; all engines must be reachable. */
ml_status ml_engines_connect(ml_gen **out, ml_arena *a, const ml_spec *spec,
                             const ml_run_opts *c, ml_err *err);

/* Starts g->n_engine processes with the sizes in g->engine, and opens g->gen over them;
 * they do not have the run's weights yet. */
ml_status ml_engines_start(ml_generator *g, const ml_run_opts *c, ml_err *err);

/* The same for n processes that only evaluate, with this number of threads each; `dir` has
 * their weights and logs. */
ml_status ml_engines_start_for_evals(ml_supervisor **supervisor, ml_gen **gen,
                                     ml_generator *g, const ml_run_opts *c, const char *dir,
                                     ml_err *err);

#endif
