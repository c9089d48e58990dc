/* math_plain.h - Unicode in an answer as the ASCII or LaTeX it stands for.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_MATH_PLAIN_H
#define ML_RL_REWARD_MATH_PLAIN_H

#include "base/str.h"

/* Appends src: digits of any script as 0-9, signs, Greek letters, raised digits and vulgar
 * fractions as LaTeX; what cannot be seen is dropped.  Bytes that are no UTF-8 become '?'. */
void ml_math_plain(ml_text *out, ml_str src);

#endif
