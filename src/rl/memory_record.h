/* memory_record.h - where the memory of a run is, written down round by round.
 *
 *     DIR/memory_snapshot_rollout_3.json
 *
 * thread: the loop's. */
#ifndef ML_RL_MEMORY_RECORD_H
#define ML_RL_MEMORY_RECORD_H

#include "rl/train_run.h"

typedef enum ml_memory_view {
    ML_MEMORY_BUFFERS, /* what the plan has: weights, gradients, activations, ... */
    ML_MEMORY_PROCESS, /* what the kernel and malloc know of the process */
} ml_memory_view;

typedef struct ml_memory_record {
    const char *dir; /* NULL: nothing is written */
    int64_t n_round; /* the first ones of this process; 0: all */
    ml_memory_view view;
    int64_t n_done; /* its own */
} ml_memory_record;

/* At the end of a round. */
ml_status ml_memory_record_round(ml_memory_record *m, ml_train_run *run, int64_t rollout,
                                 ml_err *err);

#endif
