/* memory_record.h - writes the memory usage of a run to a file, for each rollout.
 *
 *     DIR/memory_snapshot_rollout_3.json
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_MEMORY_RECORD_H
#define ML_RL_LOOP_MEMORY_RECORD_H

#include "rl/train_run.h"

typedef enum ml_memory_view {
    ML_MEMORY_BUFFERS, /* the memory plan: weights, gradients, activations, ... */
    ML_MEMORY_PROCESS, /* statistics of the kernel and of malloc */
} ml_memory_view;

typedef struct ml_memory_record {
    const char *dir; /* NULL: nothing is written */
    int64_t n_round; /* only the first rollouts of this process; 0: all */
    ml_memory_view view;
    int64_t n_done; /* private: rollouts recorded so far */
} ml_memory_record;

/* Called at the end of a rollout. */
ml_status ml_memory_record_round(ml_memory_record *m, ml_train_run *run, int64_t rollout,
                                 ml_err *err);

#endif
