/* train_faults.h - faults that a run is asked to have, to see that it survives them.
 *
 *     [{"at_rollout": 2, "action": "crash_engine_at_end", "cell_index": 0}]
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_FAULTS_H
#define ML_CLI_TRAIN_FAULTS_H

#include "base/arena.h"
#include "engine/supervisor.h"

/* An engine dies when the weights of a round were published. */
typedef struct ml_fault {
    int64_t rollout;
    int32_t engine;
} ml_fault;

typedef struct ml_faults {
    const ml_fault *fault; /* [n] */
    int32_t n;
    int64_t after; /* those of this round and before have happened */
} ml_faults;

/* Of --ci-ft-test-actions, in the arena; NULL: none. */
ml_status ml_faults_read(ml_faults *out, ml_arena *a, const char *json, int32_t n_engine,
                         ml_err *err);

/* The weights of this round were published: what has come due since the last time happens. */
void ml_faults_happen(ml_faults *f, ml_supervisor *fleet, int64_t rollout);

#endif
