/* debug.h - applies the debugging flags of sft and train to a run. */
#ifndef ML_RUN_DEBUG_H
#define ML_RUN_DEBUG_H

#include "model/plan_dump.h"
#include "rl/loop/console.h"
#include "rl/loop/coverage.h"
#include "rl/loop/invariants.h"
#include "rl/loop/recorder.h"
#include "run/memory_record.h"
#include "run/train_loop.h"

/* --- the tensor dumps of --dumper-enable --- */

/* NULL: no dump. */
typedef struct ml_train_dumps {
    ml_plan_dump *inference, *score, *train;
} ml_train_dumps;

/* An option of a dump: enable=1, enable=0, or filter=PART of the names that are written.
 * False: another word. */
bool ml_dump_option(bool *enable, const char **filter, const char *word);

/* The rules between flags have checked the options. */
ml_status ml_train_dumps_open(ml_train_dumps *d, const ml_run_opts *c, ml_err *err);
void ml_train_dumps_close(ml_train_dumps *d); /* zero-initialized is allowed */

/* An observer, see rl/observer.h: numbers the files by rollout, reports write errors. */
ml_status ml_train_dumps_on(void *dumps, const ml_loop_event *e, ml_err *err);

/* --- the other flags --- */

/* The observers of a run. */
typedef struct ml_train_debug {
    ml_arena arena;
    ml_coverage *coverage; /* NULL: none */
    ml_console console;
    ml_recorder recorder;
    ml_events *events; /* NULL: none */
    ml_memory_record memory;
    ml_invariants invariants;
    ml_control *control; /* NULL: nothing is saved */
    ml_observer at[12];
    int32_t n;
} ml_train_debug;

/* --train-env-vars, before anything starts: a JSON object. */
ml_status ml_train_set_variables(const char *json, ml_err *err);

/* Opens the observers of the started run, and sets the loop's debugging options.  Ranks
 * other than 0 have one observer, that of the display. */
ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_display *display, ml_train_dumps *dumps,
                              const ml_run_opts *c, ml_err *err);
void ml_train_debug_close(ml_train_debug *d); /* zero-initialized is allowed */

#endif
