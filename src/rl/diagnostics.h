/* account.h - what a run writes down of itself for those who look for faults: events,
 * witnesses of samples, and where its memory is.
 *
 * thread: the loop's. */
#ifndef ML_RL_DIAGNOSTICS_H
#define ML_RL_DIAGNOSTICS_H

#include "rl/events.h"
#include "rl/memory_record.h"
#include "rl/round.h"
#include "rl/coverage.h"

/* Zeros: nothing of it. */
typedef struct ml_diagnostics_opts {
    const char *events; /* the directory of events.jsonl */
    bool analyse;       /* the events, at the end */
    int64_t n_witness;  /* rows */
    int64_t
        n_masters; /* first rounds of this process whose weights are held against masters */
    ml_memory_record memory;
    ml_plan_dump *dump[3]; /* of engine and trainer, the caller's; NULL: none */
} ml_diagnostics_opts;

typedef struct ml_diagnostics {
    ml_diagnostics_opts opts;
    ml_events *events;
    ml_coverage *witness;
    int64_t n_learnt; /* rounds of this process */
} ml_diagnostics;

ml_status ml_diagnostics_open(ml_diagnostics *a, const ml_diagnostics_opts *opts,
                              ml_err *err);
void ml_diagnostics_close(ml_diagnostics *a); /* zeros are fine */

/* The run has started. */
void ml_diagnostics_begin(ml_diagnostics *a, ml_train_run *run);
/* A round begins. */
void ml_diagnostics_round_begin(ml_diagnostics *a, int64_t rollout);
/* A round was learnt from; its first step has the number `step`. */
ml_status ml_diagnostics_learnt(ml_diagnostics *a, const ml_round *r, int64_t step,
                                ml_train_run *run, ml_err *err);
/* These weights generate now.  They may be hashed: no step runs. */
ml_status ml_diagnostics_published(ml_diagnostics *a, int64_t rollout,
                                   const ml_weights *generating, ml_err *err);
/* A round is over. */
ml_status ml_diagnostics_round(ml_diagnostics *a, ml_train_run *run, int64_t rollout,
                               ml_err *err);
ml_status ml_diagnostics_end(ml_diagnostics *a, ml_err *err);

#endif
