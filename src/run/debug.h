/* debug.h - applies the debugging flags of sft and train to a run. */
#ifndef ML_RUN_DEBUG_H
#define ML_RUN_DEBUG_H

#include "run/opts.h"
#include "run/dumps.h"
#include "rl/loop/invariants.h"
#include "run/train_loop.h"

typedef struct ml_train_debug {
    ml_arena arena;
    ml_invariants checks;
    ml_diagnostics diagnostics;
} ml_train_debug;

/* Called before anything starts: --train-env-vars. */
ml_status ml_train_debug_begin(const ml_run_opts *c, ml_err *err);

/* Opens the recordings that the run is compared with, and registers them with the loop. */
ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_train_dumps *dumps, const ml_run_opts *c,
                              ml_err *err);
void ml_train_debug_close(ml_train_debug *d); /* zero-initialized is allowed */

#endif
