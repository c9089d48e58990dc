/* progress.h - what a run tells on standard output: lines, and on a terminal one more under
 * them that is rewritten: rounds, what is being done and how far it is, the time that is left.
 *
 * Lines are wrapped to the width of the terminal.  Elsewhere they stay whole, for programs to
 * read, and when nothing was said for half a minute a line says what is being done.
 *
 * thread: say and progress from any; a thread of its own rewrites the last line. */
#ifndef ML_CLI_PROGRESS_H
#define ML_CLI_PROGRESS_H

#include <stdatomic.h>

#include "rl/round.h"

/* For ml_train_loop.  There is one standard output, so there is one of it.  When *stop is not 0
 * any more, it says when the run will end; save: where it is saved then, or NULL. */
ml_watcher ml_progress_watch(const atomic_int *stop, const char *save);
/* Takes the last line away. */
void ml_progress_end(void);

/* Around what others write to the terminal; fine when nobody watches. */
void ml_progress_pause(void);
void ml_progress_resume(void);

#endif
