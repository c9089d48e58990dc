/* progress.h - the output of a run: lines and, on a terminal, a live view under them that
 * is redrawn: rollouts done, the current phase and its progress, the time left; the reward
 * and its curve over the last rollouts; tokens per second and memory.
 *
 * Lines are wrapped to the width of the terminal.  Elsewhere they are not wrapped, so
 * that programs can read them, and after half a minute without output a line reports the
 * current phase.
 *
 * thread: say from any, the observer on the loop's; a dedicated thread redraws the live view. */
#ifndef ML_CLI_PROGRESS_H
#define ML_CLI_PROGRESS_H

#include <stdatomic.h>

#include "rl/loop/console.h"

/* auto: where standard output is a terminal. */
typedef enum ml_live_view { ML_VIEW_AUTO, ML_VIEW_ON, ML_VIEW_OFF } ml_live_view;

/* There is one standard output, so there is one instance.  When *stop is no longer 0, it
 * reports when the run will end; save: where it is then saved, or NULL. */
ml_display ml_progress_open(const atomic_int *stop, const char *save, ml_live_view view);
/* Removes the live view. */
void ml_progress_end(void);

/* Called around other output to the terminal; allowed when there is no live view. */
void ml_progress_pause(void);
void ml_progress_resume(void);

#endif
