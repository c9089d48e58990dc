/* stop.h - Ctrl-C asks a run to end, a second one insists. */
#ifndef ML_CLI_STOP_H
#define ML_CLI_STOP_H

#include <signal.h>

/* Counts SIGINT and SIGTERM from now on; the second ends the process. */
const volatile sig_atomic_t *ml_stop_on_signals(void);

#endif
