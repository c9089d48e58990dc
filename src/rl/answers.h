/* answers.h - samples in the form that extensions (miles/plugin.h) see.
 *
 * thread: any. */
#ifndef ML_RL_ANSWERS_H
#define ML_RL_ANSWERS_H

#include "miles/plugin.h"
#include "rl/sample.h"

/* Views of the samples, in the arena; valid as long as the samples and the arena. */
const miles_answers *ml_answers_of(ml_arena *a, const ml_sample *const *s, int64_t n,
                                   int64_t rollout);

/* Converts the error of an extension to a status and a message. */
ml_status ml_extension_failed(const miles_extension *ext, const miles_error *why,
                              ml_err *err);

#endif
