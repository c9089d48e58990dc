/* train_faults.h - fault injection, to test that a run survives engine crashes.
 *
 *     [{"at_rollout": 2, "action": "crash_engine_at_end", "cell_index": 0}]
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_FAULTS_H
#define ML_CLI_TRAIN_FAULTS_H

#include "base/arena.h"
#include "gen/supervisor.h"

/* An engine is killed after the weights of a rollout were published. */
typedef struct ml_fault {
    int64_t rollout;
    int32_t engine;
} ml_fault;

typedef struct ml_faults {
    const ml_fault *fault; /* [n] */
    int32_t n;
    int64_t after; /* faults up to this rollout have been injected */
} ml_faults;

/* Parses --ci-ft-test-actions, in the arena; NULL: none. */
ml_status ml_faults_read(ml_faults *out, ml_arena *a, const char *json, int32_t n_engine,
                         ml_err *err);

/* Called after the weights of this rollout were published: injects the faults that are
 * due. */
void ml_faults_happen(ml_faults *f, ml_supervisor *fleet, int64_t rollout);

#endif
