/* arch_check.h - compares the architecture flags of a launch script with config.json. */
#ifndef ML_RUN_ARCH_CHECK_H
#define ML_RUN_ARCH_CHECK_H

#include "base/err.h"
#include "run/opts.h"

/* ML_EUSAGE with every flag that differs.  Flags that were not given, and members missing
 * from config.json, are not compared. */
ml_status ml_arch_check(const ml_run_opts *c, ml_err *err);

#endif
