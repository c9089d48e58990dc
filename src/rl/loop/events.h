/* events.h - a log of the events of a run, one line of JSON each, for later analysis.
 *
 *     DIR/events.jsonl    {"type": "train_group_step_end", "rollout": 3, "step": 1}
 *
 * A resumed run appends; rollouts that it repeats are logged twice.  The analysis reads the
 * whole file and checks its invariants.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_EVENTS_H
#define ML_RL_LOOP_EVENTS_H

#include "rl/observer.h"

typedef struct ml_events ml_events;

typedef struct ml_events_opts {
    const char *dir;
    const ml_weights *weights; /* the trained weights */
    bool analyse;              /* at the end of the run */
} ml_events_opts;

ml_status ml_events_open(ml_events **out, const ml_events_opts *opts, ml_err *err);
void ml_events_close(ml_events *e); /* NULL is allowed */

/* An observer, see observer.h. */
ml_status ml_events_on(void *events, const ml_loop_event *e, ml_err *err);

/* The sample's gradient entered a train step; weight: the sum of its absolute values.  Does
 * nothing if e is NULL. */
void ml_events_coverage(ml_events *e, int64_t rollout, int64_t step, int64_t sample,
                        double weight);

#endif
