/* machine.h - what this machine has, in a few lines on standard output. */
#ifndef ML_CLI_MACHINE_H
#define ML_CLI_MACHINE_H

#include "base/err.h"

ml_status ml_machine_print(ml_err *err);
/* Whether there is a GPU that can be used, or why not; opens it for that. */
void ml_machine_print_gpu(void);

#endif
