/* stop.h - the first Ctrl-C stops a run gracefully, the second ends it at once. */
#ifndef ML_CLI_STOP_H
#define ML_CLI_STOP_H

#include <stdatomic.h>

#include "cli/config.h"
#include "run/train_loop.h"

/* Counts SIGINT and SIGTERM from now on; the second ends the process.  SIGUSR1, which
 * launchers pass on to ranks, requests the same stop and never ends the process. */
const atomic_int *ml_stop_on_signals(void);

/* The text that the second signal writes to standard error before it ends the process;
 * set once. */
void ml_stop_last_words(const char *text);

/* After a loop that was requested to stop: prints where it ended, where that is saved,
 * and the command that resumes it.  Otherwise prints nothing. */
void ml_stop_tell(const ml_train_loop *l, const ml_config *c);

#endif
