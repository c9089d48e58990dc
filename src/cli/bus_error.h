/* bus_error.h - reports a mapped file that was truncated by another process.
 *
 * Data and checkpoints are mapped.  If such a file is truncated in place, the next access
 * to a missing page raises SIGBUS.  The message names the file. */
#ifndef ML_CLI_BUS_ERROR_H
#define ML_CLI_BUS_ERROR_H

/* Installs the handler: SIGBUS ends the process with a message and status 1. */
void ml_bus_error_catch(void);

#endif
