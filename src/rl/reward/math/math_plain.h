/* math_plain.h - replaces Unicode characters of an answer by equivalent ASCII or LaTeX.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_MATH_MATH_PLAIN_H
#define ML_RL_REWARD_MATH_MATH_PLAIN_H

#include "base/str.h"

/* Appends src: digits of any script as 0-9; signs, Greek letters, superscript digits and
 * vulgar fractions as LaTeX; invisible characters are dropped.  Bytes that are not UTF-8
 * become '?'. */
void ml_math_plain(ml_text *out, ml_str src);

#endif
