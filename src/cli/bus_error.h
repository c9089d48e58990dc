/* bus_error.h - a file that is being read was cut short by somebody else.
 *
 * Data and checkpoints are mapped; whoever truncates such a file in place takes pages away from
 * under the reader, and the system answers with SIGBUS.  The sentence names the file. */
#ifndef ML_CLI_BUS_ERROR_H
#define ML_CLI_BUS_ERROR_H

/* From now on that ends the process with a sentence and status 1. */
void ml_bus_error_catch(void);

#endif
