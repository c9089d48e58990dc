/* arch_check.h - what a launch script says of the architecture, held against config.json. */
#ifndef ML_CLI_ARCH_CHECK_H
#define ML_CLI_ARCH_CHECK_H

#include "base/err.h"
#include "cli/config.h"

/* ML_EUSAGE with every flag that says something else.  Flags that were not given, and members
 * that config.json does not have, say nothing. */
ml_status ml_arch_check(const ml_config *c, ml_err *err);

#endif
