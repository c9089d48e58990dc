/* answers.h - samples as rows of miles/plugin.h see them.
 *
 * thread: any. */
#ifndef ML_RL_ANSWERS_H
#define ML_RL_ANSWERS_H

#include "miles/plugin.h"
#include "rl/sample.h"

/* Views of the samples, in the arena; they are good as long as both. */
const miles_answers *ml_answers_of(ml_arena *a, const ml_sample *const *s, int64_t n,
                                   int64_t rollout);

/* What a row's error becomes. */
ml_status ml_extension_failed(const miles_extension *row, const miles_error *why,
                              ml_err *err);

#endif
