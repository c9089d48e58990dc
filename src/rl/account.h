/* account.h - what a run writes down of itself for those who look for faults: events,
 * witnesses of samples, and where its memory is.
 *
 * thread: the loop's. */
#ifndef ML_RL_ACCOUNT_H
#define ML_RL_ACCOUNT_H

#include "rl/events.h"
#include "rl/memory_record.h"
#include "rl/round.h"
#include "rl/witness.h"

/* Zeros: nothing of it. */
typedef struct ml_account_opts {
    const char *events; /* the directory of events.jsonl */
    bool analyse;       /* the events, at the end */
    int64_t n_witness;  /* rows */
    int64_t
        n_masters; /* first rounds of this process whose weights are held against masters */
    ml_memory_record memory;
    ml_plan_dump *dump[3]; /* of engine and trainer, the caller's; NULL: none */
} ml_account_opts;

typedef struct ml_account {
    ml_account_opts opts;
    ml_events *events;
    ml_witness *witness;
    int64_t n_learnt; /* rounds of this process */
} ml_account;

ml_status ml_account_open(ml_account *a, const ml_account_opts *opts, ml_err *err);
void ml_account_close(ml_account *a); /* zeros are fine */

/* The run has started. */
void ml_account_begin(ml_account *a, ml_train_run *run);
/* A round begins. */
void ml_account_round_begin(ml_account *a, int64_t rollout);
/* A round was learnt from; its first step has the number `step`. */
ml_status ml_account_learnt(ml_account *a, const ml_round *r, int64_t step,
                            ml_train_run *run, ml_err *err);
/* These weights generate now.  They may be hashed: no step runs. */
ml_status ml_account_published(ml_account *a, int64_t rollout, const ml_weights *generating,
                               ml_err *err);
/* A round is over. */
ml_status ml_account_round(ml_account *a, ml_train_run *run, int64_t rollout, ml_err *err);
ml_status ml_account_end(ml_account *a, ml_err *err);

#endif
