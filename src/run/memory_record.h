/* memory_record.h - writes the memory usage of a run to a file, for each rollout.
 *
 *     DIR/memory_snapshot_rollout_3.json            of rank 0
 *     DIR/memory_snapshot_rollout_3_rank_1.json     of the others
 *
 * thread: the loop's. */
#ifndef ML_RUN_MEMORY_RECORD_H
#define ML_RUN_MEMORY_RECORD_H

#include "rl/observer.h"
#include "run/run.h"

typedef enum ml_memory_view {
    ML_MEMORY_BUFFERS, /* the memory plan: weights, gradients, activations, ... */
    ML_MEMORY_PROCESS, /* statistics of the kernel and of malloc */
} ml_memory_view;

typedef struct ml_memory_record {
    ml_train_run *run;
    const char *dir;
    int64_t n_rollout; /* only the first rollouts of this process; 0: all */
    ml_memory_view view;
    int64_t n_done; /* private: rollouts recorded so far */
} ml_memory_record;

/* An observer, see observer.h. */
ml_status ml_memory_record_on(void *memory_record, const ml_loop_event *e, ml_err *err);

#endif
