/* hooks.h - calls the hook extensions of a run.
 *
 * thread: the loop's. */
#ifndef ML_RL_HOOKS_H
#define ML_RL_HOOKS_H

#include "base/err.h"
#include "miles/plugin.h"

typedef struct ml_hooks {
    const miles_hook *at[MILES_WEIGHTS_WRITTEN + 1]; /* by miles_when; NULL: no hook */
} ml_hooks;

/* `hooks` may be NULL. */
ml_status ml_hooks_call(const ml_hooks *hooks, miles_when when, int64_t rollout,
                        int64_t step, const char *what, ml_err *err);
/* The same for MILES_DATA_READY. */
ml_status ml_hooks_call_batch(const ml_hooks *hooks, int64_t rollout,
                              const miles_batch *batch, ml_err *err);

#endif
