/* train_debug.h - the debugging flags of sft and train, as a run takes them. */
#ifndef ML_CLI_TRAIN_DEBUG_H
#define ML_CLI_TRAIN_DEBUG_H

#include "cli/config.h"
#include "cli/train_dumps.h"
#include "rl/invariants.h"
#include "rl/train_loop.h"

typedef struct ml_train_debug {
    ml_arena arena;
    ml_invariants checks;
    ml_diagnostics account;
} ml_train_debug;

/* Before anything starts: --train-env-vars, --env-report. */
ml_status ml_train_debug_begin(const ml_config *c, ml_err *err);

/* What they change of the run. */
void ml_train_debug_opts(ml_train_run_opts *o, const ml_config *c);

/* Opens what the run is held against, and tells the loop. */
ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_train_dumps *dumps, const ml_config *c, ml_err *err);
void ml_train_debug_close(ml_train_debug *d); /* zeros are fine */

#endif
