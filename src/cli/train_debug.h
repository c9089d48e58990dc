/* train_debug.h - applies the debugging flags of sft and train to a run. */
#ifndef ML_CLI_TRAIN_DEBUG_H
#define ML_CLI_TRAIN_DEBUG_H

#include "cli/config.h"
#include "cli/train_dumps.h"
#include "rl/loop/console.h"
#include "rl/loop/coverage.h"
#include "rl/loop/invariants.h"
#include "rl/loop/memory_record.h"
#include "rl/loop/recorder.h"
#include "rl/loop/train_loop.h"

/* The observers of a run. */
typedef struct ml_train_debug {
    ml_arena arena;
    ml_coverage *coverage; /* NULL: none */
    ml_console console;
    ml_recorder recorder;
    ml_events *events; /* NULL: none */
    ml_memory_record memory;
    ml_invariants invariants;
    ml_observer at[12];
    int32_t n;
} ml_train_debug;

/* Called before anything starts: --train-env-vars, --env-report. */
ml_status ml_train_debug_begin(const ml_config *c, ml_err *err);

/* Changes the options of the run. */
void ml_train_debug_opts(ml_train_run_opts *o, const ml_config *c);

/* Opens the observers of the started run, and sets the loop's debugging options. */
ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_display *display, ml_train_dumps *dumps,
                              const ml_config *c, ml_err *err);
void ml_train_debug_close(ml_train_debug *d); /* zero-initialized is allowed */

#endif
