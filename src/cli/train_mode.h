/* train_mode.h - execution modes: synchronous rollouts (miles train), prefetch rollout,
 * or async rollout (miles train-async).
 *
 * thread: the command's. */
#ifndef ML_CLI_TRAIN_MODE_H
#define ML_CLI_TRAIN_MODE_H

#include "cli/train_gen.h"
#include "rl/loop/console.h"
#include "rl/loop/train_loop.h"

/* Gives the loop its rollout, publish and evaluate functions; the generator has started. */
ml_status ml_train_mode_enter(ml_train_gen *t, ml_train_loop *loop,
                              const ml_display *display, const ml_config *c, ml_err *err);
/* Stops generation in progress. */
void ml_train_mode_leave(ml_train_gen *t);

#endif
