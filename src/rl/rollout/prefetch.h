/* prefetch.h - a rollout that generates the next rollout batch while the current one is
 * trained on.
 *
 * A background thread generates the batch with the currently published weights.  `rest`
 * waits for that thread, so weights never change during a rollout.  The samples of rollout
 * i + 1 therefore always come from the weights published before training on rollout i:
 * they are the same bytes regardless of timing.  A batch that was generated but not yet
 * trained on is part of a snapshot.
 *
 * thread: the loop's; the inner rollout belongs to the generating thread from `collect`
 * until `rest`. */
#ifndef ML_RL_ROLLOUT_PREFETCH_H
#define ML_RL_ROLLOUT_PREFETCH_H

#include "base/background.h"
#include "rl/rollout/rollout.h"

typedef struct ml_prefetch {
    ml_rollout inner;    /* the inner rollout, which generates */
    int64_t num_rollout; /* total number of rollouts: none is generated beyond the last */
    int64_t n_vocab;     /* vocabulary size of the model */
    ml_background maker;
    int64_t rollout; /* being generated or finished; -1: none */
    bool there;      /* it was loaded from a snapshot, or waited for */
    ml_arena arena;  /* owns the batch below */
    ml_rollout_batch batch;
} ml_prefetch;

void ml_prefetch_init(ml_prefetch *h, ml_rollout inner, int64_t num_rollout,
                      int64_t n_vocab);
void ml_prefetch_release(ml_prefetch *h); /* cancels a rollout that is being generated */

ml_rollout ml_rollout_prefetch(ml_prefetch *h);

#endif
