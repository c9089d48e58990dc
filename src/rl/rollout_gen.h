/* rollout_gen.h - a round of answers: prompts out, samples with rewards in.
 *
 * Groups of samples are asked for until enough are kept.  A group is judged when its last
 * sample has ended; groups that end in the same step are judged in the order of their
 * numbers, and everything is decided between steps.  What is not needed any more is
 * aborted and dropped, or held for the next round, which goes on with it first.
 *
 * A group with a sample that has no reward (the grader hung, died or answered nonsense)
 * is dropped and counted, never trained as if it were worth nothing.
 *
 * thread: the loop's. */
#ifndef ML_RL_ROLLOUT_GEN_H
#define ML_RL_ROLLOUT_GEN_H

#include <stdatomic.h>

#include "rl/gen_task.h"
#include "rl/group_filter.h"
#include "rl/partial_buffer.h"
#include "rl/rollout.h"

typedef struct ml_gen_rollout {
    ml_train_run *run;
    ml_gen_ctx asker;
    ml_sampling how;
    int64_t over_sampling;            /* groups that are asked for at once; 0: a round's */
    const miles_group_filter *filter; /* NULL: all are kept */
    const miles_buffer_filter *buffer_filter; /* which held groups go on; NULL: the first */
    bool partial;  /* what is aborted goes on in the next round ... */
    bool mask_old; /* ... which does not train what it has by then */
    ml_partial_buffer held;
    atomic_bool cancelled; /* its rounds end, failed */
} ml_gen_rollout;

/* held is initialised by the caller. */
ml_rollout ml_rollout_gen(ml_gen_rollout *g);

#endif
