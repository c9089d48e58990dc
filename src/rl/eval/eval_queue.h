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
    ml_evals *evals;               /* only the queue may use its generator */
    const ml_weights *weights;     /* to evaluate */
    const ml_observers *observers; /* receive ML_ON_EVALUATED on the loop's thread */
    const ml_spec *spec;
    const ml_checkpoint *from; /* gives names and dtypes for written snapshots */
    const char *dir;
    int32_t max_in_flight; /* evaluations submitted and not taken */
    bool skip;             /* skip evaluations above that limit instead of waiting */
    int32_t keep;          /* number of evaluated snapshots to keep on disk */
} ml_eval_queue_opts;

ml_status ml_eval_queue_open(ml_eval_queue **out, const ml_eval_queue_opts *o, ml_err *err);
void ml_eval_queue_close(ml_eval_queue *q); /* waits for the running one; NULL is allowed */

/* The functions of an ml_eval_driver; `queue` is an ml_eval_queue.
 *
 * run writes the weights to disk and submits their evaluation.  If too many are in flight,
 * it first waits for the oldest; or, with `skip`, reports that this one is skipped. */
ml_status ml_eval_queue_run(void *queue, int64_t rollout, ml_err *err);
ml_status ml_eval_queue_wait(void *queue, ml_err *err);

#endif
