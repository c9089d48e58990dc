/* remote_teacher.h - a teacher behind HTTP scores answers that somebody else gave.
 *
 * thread: the caller's; it waits. */
#ifndef ML_RL_REMOTE_TEACHER_H
#define ML_RL_REMOTE_TEACHER_H

#include "engine/gen.h"
#include "train/micro.h"

/* The teacher's log-probs of the response tokens, at temperature 1, into
 * logprob[i] [n_response].  All samples are asked for at once. */
ml_status ml_remote_teacher_score(ml_gen *teacher, const ml_train_sample *s, int32_t n,
                                  float *const *logprob, ml_err *err);

#endif
