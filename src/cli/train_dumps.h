/* train_dumps.h - the tensor dumps of --dumper-enable.
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_DUMPS_H
#define ML_CLI_TRAIN_DUMPS_H

#include "cli/config.h"
#include "model/plan_dump.h"
#include "rl/observer.h"

/* NULL: no dump. */
typedef struct ml_train_dumps {
    ml_plan_dump *inference, *score, *train;
} ml_train_dumps;

/* ML_EUSAGE: unknown option. */
ml_status ml_train_dumps_open(ml_train_dumps *d, const ml_config *c, ml_err *err);
void ml_train_dumps_close(ml_train_dumps *d); /* zero-initialized is allowed */

/* An observer, see rl/observer.h: numbers the files by rollout, reports write errors. */
ml_status ml_train_dumps_on(void *dumps, const ml_loop_event *e, ml_err *err);

#endif
