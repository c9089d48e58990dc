/* eval_queue.h - evaluations behind the loop's back: of weights on disk, by engines of their own.
 *
 *     DIR/step_19/    a Hugging Face checkpoint with its seal (model/weights_seal.h)
 *
 * They run one after the other while training goes on.  What they found is taken in the order
 * they were asked for, by a loop that waits where it must: so a run's metrics do not depend on
 * the clock, unless evaluations are left out when too many wait.
 *
 * thread: the loop's; a thread of its own evaluates. */
#ifndef ML_RL_EVAL_QUEUE_H
#define ML_RL_EVAL_QUEUE_H

#include "model/weights.h"
#include "rl/evals.h"

typedef struct ml_eval_queue ml_eval_queue;

typedef struct ml_eval_queue_opts {
    ml_evals *evals; /* its generator is the queue's alone */
    const ml_spec *spec;
    const ml_checkpoint *from; /* what snapshots are written like */
    const char *dir;
    int32_t max_in_flight; /* asked for, and not taken */
    bool skip;             /* what is beyond is left out, not waited for */
    int32_t keep;          /* snapshots that stay when they were evaluated */
} ml_eval_queue_opts;

ml_status ml_eval_queue_open(ml_eval_queue **out, const ml_eval_queue_opts *o, ml_err *err);
void ml_eval_queue_close(ml_eval_queue *q); /* waits for the one under way; NULL is fine */

/* Takes the oldest; waits for it if `wait`.  False: there is none. */
typedef struct ml_eval_result {
    ml_arena arena; /* the taker releases it */
    int64_t rollout;
    ml_eval_scores scores;
    ml_status st;
    ml_err err;
} ml_eval_result;
bool ml_eval_queue_take(ml_eval_queue *q, ml_eval_result *out, bool wait);

/* Whether the next one finds room. */
bool ml_eval_queue_has_room(ml_eval_queue *q);
bool ml_eval_queue_skips(const ml_eval_queue *q);

/* Writes the weights, and has them evaluated as those after this round; there is room. */
ml_status ml_eval_queue_ask(ml_eval_queue *q, int64_t rollout, const ml_weights *w,
                            ml_err *err);

#endif
