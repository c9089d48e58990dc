/* gpqa_letter.h - extracts the letter of the choice that a response names.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_GRADERS_GPQA_LETTER_H
#define ML_RL_REWARD_GRADERS_GPQA_LETTER_H

#include "base/arena.h"
#include "base/str.h"

#define ML_GPQA_LETTERS 26

/* Returns the capital letter of the choice, among the valid ones, or 0 if the response
 * names none.  A letter counts if it is a separate word, is neither the article "a" nor
 * the pronoun "I", and is not rejected ("A is wrong", "not B").  Patterns in order of
 * priority, the last match of each: a box or a "final answer"; "the answer is B", "B is
 * correct", "I choose B"; a weaker mention ("option B", "so B"), of which the first match
 * counts; the letter that opens the response; any capital. */
char ml_gpqa_letter(ml_arena *a, const bool valid[ML_GPQA_LETTERS], ml_str response);

#endif
