/* hooks.h - calls the hook extensions of a run.
 *
 * thread: the loop's. */
#ifndef ML_RL_HOOKS_H
#define ML_RL_HOOKS_H

#include "rl/observer.h"

typedef struct ml_hooks {
    const miles_hook *at[MILES_WEIGHTS_WRITTEN + 1]; /* by miles_when; NULL: no hook */
} ml_hooks;

/* An observer, see observer.h. */
ml_status ml_hooks_on(void *hooks, const ml_loop_event *e, ml_err *err);

#endif
