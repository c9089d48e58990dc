/* train_loop.h - the wheel of a run: rollout, learn, save, publish, evaluate, and again.
 *
 * In Miles' order, that of train.py or of train_async.py.  What a round's samples are is the
 * rollout's business (rollout.h), what they teach the learner's; the loop only turns, writes
 * down what happened, and stops between rounds when it is asked to.
 *
 * thread: the trainer's. */
#ifndef ML_RL_TRAIN_LOOP_H
#define ML_RL_TRAIN_LOOP_H

#include <stdatomic.h>

#include "rl/diagnostics.h"
#include "rl/invariants.h"
#include "rl/eval_queue.h"
#include "rl/hashes.h"

/* Zeros: nothing of it. */
typedef struct ml_loop_debug {
    ml_invariants *checks;   /* NULL: none */
    ml_diagnostics *account; /* NULL: none */
    const char *trajectory;  /* where rounds are written as text */
    int64_t print_every;     /* rounds: a sample is shown */
    int64_t exit_after;      /* rounds of this process */
    const char *sentinel;    /* a file that asks for a save, and is removed */
    bool tell_sync, check_sync;
    ml_skip sync_skip;            /* parameters that check_sync leaves out */
    const ml_weights *generating; /* the set that generates, if it is not the trained one */
    bool elsewhere;               /* what generates is in another process */
    int64_t n_done;               /* the loop's own: rounds of this process */
} ml_loop_debug;

typedef struct ml_train_loop {
    ml_train_run *run;
    ml_rollout rollout;
    /* Makes the weights those that generate; NULL: nothing does. */
    ml_status (*publish)(void *ud, const ml_weights *w, ml_err *err);
    void *publish_ud;
    /* Makes room for what comes next: training, or generation.  NULL: there is room for both. */
    ml_status (*turn)(void *ud, bool trains, ml_err *err);
    void *turn_ud;
    int64_t publish_interval; /* rounds; 0: each.  A run is saved only where it publishes */
    /* Scores the weights that generate, as eval/... figures; NULL: nobody asks. */
    ml_status (*evaluate)(void *ud, ml_eval_scores *out, ml_err *err);
    void *evaluate_ud;
    ml_eval_queue *behind; /* evaluates while the loop goes on, in place of that; NULL */
    int64_t eval_interval; /* rounds; 0: never */
    bool skip_first_eval;
    bool ahead;         /* as in Miles' train_async, the last round is always evaluated */
    const char *record; /* where rounds are recorded; NULL: nowhere */
    /* Not 0: what is not saved yet is finished and saved, then the loop ends.  May be NULL. */
    const atomic_int *stop;
    bool ending, looked; /* the loop's own: it was asked to; the first round was shown */
    bool unsaved;        /* and: it has learned something since the last snapshot */
    ml_watcher watch;
    ml_loop_debug debug;
} ml_train_loop;

ml_status ml_train_loop_run(ml_train_loop *l, ml_err *err);

#endif
