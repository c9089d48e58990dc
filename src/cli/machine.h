/* machine.h - prints a summary of this machine. */
#ifndef ML_CLI_MACHINE_H
#define ML_CLI_MACHINE_H

#include "base/err.h"

ml_status ml_machine_print(ml_err *err);
/* Prints whether there is a usable GPU, or why not; opens it for that. */
void ml_machine_print_gpu(void);

#endif
