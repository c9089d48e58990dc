/* stop.h - Ctrl-C asks a run to end, a second one insists. */
#ifndef ML_CLI_STOP_H
#define ML_CLI_STOP_H

#include <stdatomic.h>

#include "cli/config.h"
#include "rl/train_loop.h"

/* Counts SIGINT and SIGTERM from now on; the second ends the process. */
const atomic_int *ml_stop_on_signals(void);

/* What the second signal writes to standard error before it ends the process; set once. */
void ml_stop_last_words(const char *text);

/* After a loop that was asked to stop: prints where it ended, where that is saved, and the
 * command that goes on from there.  Nothing for one that was not asked. */
void ml_stop_tell(const ml_train_loop *l, const ml_config *c);

#endif
