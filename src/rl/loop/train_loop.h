/* train_loop.h - the main loop of a run: rollout, learn, save, publish, evaluate, repeat.
 *
 * The order is that of Miles' train.py or train_async.py.  The rollout (rollout.h)
 * produces the samples, the learner trains on them; the loop calls both, logs the results,
 * and stops between rollouts when requested.
 *
 * thread: the trainer's. */
#ifndef ML_RL_LOOP_TRAIN_LOOP_H
#define ML_RL_LOOP_TRAIN_LOOP_H

#include <stdatomic.h>

#include "rl/loop/diagnostics.h"
#include "rl/loop/invariants.h"
#include "rl/eval/eval_queue.h"
#include "rl/record/hashes.h"

/* Options for debugging.  Zeros: disabled. */
typedef struct ml_loop_debug {
    ml_invariants *checks;       /* NULL: none */
    ml_diagnostics *diagnostics; /* NULL: none */
    const char *trajectory;      /* where rollouts are written as text */
    int64_t print_every;         /* rollouts between two printed samples */
    int64_t exit_after;          /* rollouts of this process */
    const char *sentinel;        /* a file that requests a save; the loop removes it */
    bool tell_sync, check_sync;
    ml_skip sync_skip; /* parameters that check_sync leaves out */
    /* The weight set that generates, if it is not the trained one. */
    const ml_weights *generating;
    bool elsewhere; /* another process generates */
    int64_t n_done; /* internal: rollouts of this process */
} ml_loop_debug;

typedef struct ml_train_loop {
    ml_train_run *run;
    ml_rollout rollout;
    /* Publishes the weights to the engine; NULL: there is no engine. */
    ml_status (*publish)(void *ud, const ml_weights *w, ml_err *err);
    void *publish_ud;
    /* Frees memory for the next phase, training or generation.  NULL: memory suffices for
     * both. */
    ml_status (*turn)(void *ud, bool trains, ml_err *err);
    void *turn_ud;
    /* In rollouts; 0: each.  A run is saved only where it publishes. */
    int64_t publish_interval;
    /* Evaluates the published weights, as eval/... metrics; NULL: no evaluation. */
    ml_status (*evaluate)(void *ud, ml_eval_scores *out, ml_err *err);
    void *evaluate_ud;
    ml_eval_queue *async_eval; /* evaluates in the background instead; may be NULL */
    int64_t eval_interval;     /* in rollouts; 0: never */
    bool skip_first_eval;
    bool prefetch;      /* as in Miles' train_async, always evaluate the last rollout */
    const char *record; /* where rollouts are recorded; NULL: nowhere */
    /* Not 0: the loop finishes and saves unsaved work, then ends.  May be NULL. */
    const atomic_int *stop;
    bool ending, looked; /* internal: a stop was requested; the first rollout was shown */
    bool unsaved;        /* internal: trained since the last snapshot */
    ml_watcher watch;
    ml_loop_debug debug;
} ml_train_loop;

ml_status ml_train_loop_run(ml_train_loop *l, ml_err *err);

#endif
