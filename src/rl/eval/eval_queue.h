/* eval_queue.h - asynchronous evaluations: of weights on disk, by separate engines.
 *
 *     DIR/step_19/    a Hugging Face checkpoint with its checksum (model/weights_checksum.h)
 *
 * Evaluations run one after the other while training continues.  The loop takes the results
 * in the order of submission and waits for them where necessary, so a run's metrics do not
 * depend on timing, unless evaluations are skipped when too many are queued.
 *
 * thread: the training loop's; the queue evaluates on its own thread. */
#ifndef ML_RL_EVAL_EVAL_QUEUE_H
#define ML_RL_EVAL_EVAL_QUEUE_H

#include "model/weights.h"
#include "rl/eval/evals.h"

typedef struct ml_eval_queue ml_eval_queue;

typedef struct ml_eval_queue_opts {
    ml_evals *evals; /* only the queue may use its generator */
    const ml_spec *spec;
    const ml_checkpoint *from; /* gives names and dtypes for written snapshots */
    const char *dir;
    int32_t max_in_flight; /* evaluations submitted and not taken */
    bool skip;             /* skip evaluations above that limit instead of waiting */
    int32_t keep;          /* number of evaluated snapshots to keep on disk */
} ml_eval_queue_opts;

ml_status ml_eval_queue_open(ml_eval_queue **out, const ml_eval_queue_opts *o, ml_err *err);
void ml_eval_queue_close(ml_eval_queue *q); /* waits for the running one; NULL is allowed */

/* Takes the oldest result; waits for it if `wait`.  False: there is none. */
typedef struct ml_eval_result {
    ml_arena arena; /* the caller of ml_eval_queue_take releases it */
    int64_t rollout;
    ml_eval_scores scores;
    ml_status st;
    ml_err err;
} ml_eval_result;
bool ml_eval_queue_take(ml_eval_queue *q, ml_eval_result *out, bool wait);

/* Whether another evaluation can be submitted now. */
bool ml_eval_queue_has_room(ml_eval_queue *q);
bool ml_eval_queue_skips(const ml_eval_queue *q);

/* Writes the weights to disk and submits their evaluation, labelled with this rollout.  The
 * queue must have room (ml_eval_queue_has_room). */
ml_status ml_eval_queue_submit(ml_eval_queue *q, int64_t rollout, const ml_weights *w,
                               ml_err *err);

#endif
