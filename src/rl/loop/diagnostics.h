/* diagnostics.h - records for debugging a run: events, the coverage check of samples, and
 * memory usage.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_DIAGNOSTICS_H
#define ML_RL_LOOP_DIAGNOSTICS_H

#include "rl/record/events.h"
#include "rl/loop/memory_record.h"
#include "rl/loop/iteration.h"
#include "rl/record/coverage.h"

/* Zeros: all of it is off. */
typedef struct ml_diagnostics_opts {
    const char *events; /* the directory of events.jsonl */
    bool analyse;       /* analyse the events at the end */
    int64_t n_coverage; /* rows of the coverage table */
    int64_t n_masters;  /* compare weights with master weights in the first n rollouts */
    ml_memory_record memory;
    ml_plan_dump *dump[3]; /* of engine and trainer, owned by the caller; NULL: none */
} ml_diagnostics_opts;

typedef struct ml_diagnostics {
    ml_diagnostics_opts opts;
    ml_events *events;
    ml_coverage *coverage;
    int64_t n_learnt; /* rollouts that this process has trained on */
} ml_diagnostics;

ml_status ml_diagnostics_open(ml_diagnostics *a, const ml_diagnostics_opts *opts,
                              ml_err *err);
void ml_diagnostics_close(ml_diagnostics *a); /* zeros are allowed */

/* Called when the run has started. */
void ml_diagnostics_begin(ml_diagnostics *a, ml_train_run *run);
/* Called at the beginning of a rollout. */
void ml_diagnostics_rollout_begin(ml_diagnostics *a, int64_t rollout);
/* Called after training on a rollout; its first train step has the number `step`. */
ml_status ml_diagnostics_trained(ml_diagnostics *a, const ml_iteration *r, int64_t step,
                                 ml_train_run *run, ml_err *err);
/* Called after a publication with the generator's new weights.  No engine step runs during
 * the call, so it may hash them. */
ml_status ml_diagnostics_published(ml_diagnostics *a, int64_t rollout,
                                   const ml_weights *generating, ml_err *err);
/* Called at the end of a rollout. */
ml_status ml_diagnostics_rollout(ml_diagnostics *a, ml_train_run *run, int64_t rollout,
                                 ml_err *err);
ml_status ml_diagnostics_end(ml_diagnostics *a, ml_err *err);

#endif
