/* train_debug.h - applies the debugging flags of sft and train to a run. */
#ifndef ML_CLI_TRAIN_DEBUG_H
#define ML_CLI_TRAIN_DEBUG_H

#include "cli/config.h"
#include "cli/train_dumps.h"
#include "rl/loop/invariants.h"
#include "rl/loop/train_loop.h"

typedef struct ml_train_debug {
    ml_arena arena;
    ml_invariants checks;
    ml_diagnostics diagnostics;
} ml_train_debug;

/* Called before anything starts: --train-env-vars, --env-report. */
ml_status ml_train_debug_begin(const ml_config *c, ml_err *err);

/* Changes the options of the run. */
void ml_train_debug_opts(ml_train_run_opts *o, const ml_config *c);

/* Opens the recordings that the run is compared with, and registers them with the loop. */
ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_train_dumps *dumps, const ml_config *c, ml_err *err);
void ml_train_debug_close(ml_train_debug *d); /* zero-initialized is allowed */

#endif
