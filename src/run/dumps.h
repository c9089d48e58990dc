/* dumps.h - the tensor dumps of --dumper-enable.
 *
 * thread: the command's. */
#ifndef ML_RUN_DUMPS_H
#define ML_RUN_DUMPS_H

#include "run/opts.h"
#include "model/plan_dump.h"

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

#endif
