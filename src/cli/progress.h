/* progress.h - the output of a run: lines and, on a terminal, a status line under them
 * that is redrawn: rollouts, the current phase and its progress, the time left.
 *
 * Lines are wrapped to the width of the terminal.  Elsewhere they are not wrapped, so
 * that programs can read them, and after half a minute without output a line reports the
 * current phase.
 *
 * thread: say from any, the observer on the loop's; a dedicated thread redraws the status line. */
#ifndef ML_CLI_PROGRESS_H
#define ML_CLI_PROGRESS_H

#include <stdatomic.h>

#include "rl/loop/console.h"

/* There is one standard output, so there is one instance.  When *stop is no longer 0, it
 * reports when the run will end; save: where it is then saved, or NULL.  lines: also on a
 * terminal there is no status line; mpirun shows what it gets as one wherever it writes. */
ml_display ml_progress_open(const atomic_int *stop, const char *save, bool lines);
/* Removes the status line. */
void ml_progress_end(void);

/* Called around other output to the terminal; allowed when there is no status line. */
void ml_progress_pause(void);
void ml_progress_resume(void);

#endif
