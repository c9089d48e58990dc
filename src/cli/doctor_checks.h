/* doctor_checks.h - what a command line names, looked at thing by thing: model, data, rewards,
 * disk, device.
 *
 * thread: the command's. */
#ifndef ML_CLI_DOCTOR_CHECKS_H
#define ML_CLI_DOCTOR_CHECKS_H

#include "cli/flag.h"

/* Prints a line for each thing that the command uses; what is wrong with one keeps none from being
 * looked at.  The number of those that are wrong; *first is the status of the first. */
int ml_doctor_checks(const ml_config *c, ml_cmd cmd, ml_status *first);

#endif
