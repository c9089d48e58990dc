/* ahead.h - a rollout that is one round ahead: while a round is trained on, the next one is
 * made.
 *
 * The round that is under way is made by a thread of its own with the weights that generate
 * now; `rest` waits for it, so that weights never change under a round.  So the samples of
 * round i + 1 are those of the weights that were published before round i was learned:
 * the same bytes, whatever takes how long.  A round that was made and not yet
 * trained on is part of a snapshot.
 *
 * thread: the loop's; the rollout behind it belongs to the thread that makes a round, from
 * `collect` until `rest`. */
#ifndef ML_RL_PREFETCH_H
#define ML_RL_PREFETCH_H

#include "base/background.h"
#include "rl/rollout.h"

typedef struct ml_prefetch {
    ml_rollout behind;   /* what makes rounds */
    int64_t num_rollout; /* rounds in all: none is made beyond the last */
    int64_t n_vocab;     /* tokens of the model */
    ml_background maker;
    int64_t rollout; /* that is under way or there; -1: none */
    bool there;      /* it was loaded, or waited for */
    ml_arena arena;  /* of what follows */
    ml_rollout_batch harvest;
} ml_prefetch;

void ml_prefetch_init(ml_prefetch *h, ml_rollout behind, int64_t num_rollout,
                      int64_t n_vocab);
void ml_prefetch_release(ml_prefetch *h); /* ends what is under way */

ml_rollout ml_rollout_prefetch(ml_prefetch *h);

#endif
