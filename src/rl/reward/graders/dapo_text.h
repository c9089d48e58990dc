/* dapo_text.h - normalises an answer as Miles' dapo grader does.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_GRADERS_DAPO_TEXT_H
#define ML_RL_REWARD_GRADERS_DAPO_TEXT_H

#include "base/str.h"

/* Appends the normal form of an answer line, or of a label. */
void ml_dapo_normalize(ml_text *out, ml_str answer);

/* The normal form of the last "Answer:" line among the last 300 characters, or
 * "[INVALID]".  The result points into `room`. */
ml_str ml_dapo_pred(ml_text *room, ml_str response);

#endif
