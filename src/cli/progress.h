/* progress.h - what a run tells on standard output: lines, and on a terminal a bar under
 * them with the time that is left. */
#ifndef ML_CLI_PROGRESS_H
#define ML_CLI_PROGRESS_H

#include "rl/round.h"

/* For ml_train_loop.  There is one standard output, so there is one of it. */
ml_watcher ml_progress_watch(void);
/* Takes the bar away. */
void ml_progress_end(void);

#endif
