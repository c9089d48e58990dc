/* train_loop.h - the main loop of a run: rollout, learn, save, publish, evaluate, repeat.
 *
 * The order is that of Miles' train.py or train_async.py.  The rollout (rollout.h)
 * produces the samples, the learner trains on them.  The loop reports each stage to the
 * run's observers (observer.h), and stops between rollouts when requested.
 *
 * thread: the trainer's. */
#ifndef ML_RUN_TRAIN_LOOP_H
#define ML_RUN_TRAIN_LOOP_H

#include <stdatomic.h>

#include "rl/eval/evals.h"
#include "rl/loop/iteration.h"
#include "rl/record/control.h"
#include "run/generator.h"
#include "run/publisher.h"

/* The turn of a run whose trainer uses memory and a backend that others use, too: it has them
 * between take and give. */
typedef struct ml_trainer_turn {
    void (*take)(void *ud), (*give)(void *ud);
    void *ud;
} ml_trainer_turn;

typedef struct ml_train_loop {
    ml_train_run *run;
    const ml_trainer_turn *turn; /* NULL: nothing is shared */
    ml_rollout rollout;
    ml_generator *generator; /* NULL: this rank does not generate, nor evaluate */
    ml_publisher *publisher; /* likewise */
    bool publishes;          /* a rank of the run has a publisher */
    /* In rollouts; 0: each.  A run is saved only where it publishes. */
    int64_t publish_interval;
    ml_eval_driver eval;   /* of the published weights; zeros: no evaluation */
    int64_t eval_interval; /* in rollouts */
    bool skip_first_eval;
    bool prefetch; /* as in Miles' train_async, always evaluate the last rollout */
    /* Not 0: the loop finishes and saves unsaved work, then ends.  May be NULL. */
    const atomic_int *stop;
    int64_t exit_after;    /* end after this many rollouts of this process; 0: do not */
    const char *sentinel;  /* a file that requests a save; the loop removes it; or NULL */
    ml_control *control;   /* requests to the run, read between rollouts; NULL: none */
    double clock_offset_s; /* of this rank's clock from rank 0's, for the trace */

    /* Internal. */
    ml_iteration iteration;   /* the current rollout */
    ml_loop_event now;        /* the next event */
    int64_t first;            /* rollout of this process */
    int64_t saved;            /* the newest snapshot that this process wrote; -1: none */
    ml_control_orders orders; /* of rank 0 to all ranks */
} ml_train_loop;

ml_status ml_train_loop_run(ml_train_loop *l, ml_err *err);

#endif
