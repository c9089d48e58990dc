/* doctor_checks.h - checks everything a command line refers to: model, data, rewards,
 * disk, device.
 *
 * thread: the command's. */
#ifndef ML_CLI_COMMANDS_DOCTOR_CHECKS_H
#define ML_CLI_COMMANDS_DOCTOR_CHECKS_H

#include "cli/flags/flag.h"

/* Prints a line for each check that applies to the command; an error does not stop the
 * others.  Returns the number of errors; *first is the status of the first. */
int ml_doctor_checks(const ml_config *c, ml_cmd cmd, ml_status *first);

#endif
