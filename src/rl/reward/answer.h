/* answer.h - finding the answer in a response.
 *
 * thread: any; views point into the text given. */
#ifndef ML_RL_REWARD_ANSWER_H
#define ML_RL_REWARD_ANSWER_H

#include <stdbool.h>

#include "base/str.h"

/* What stands in the last \boxed{...}, exactly as Miles finds it: braces counted blindly,
 * the last box or none. */
bool ml_answer_last_box(ml_str text, ml_str *out);

/* The last box that is complete: escaped braces are no braces, a blank may follow the macro,
 * \fbox counts where there is no \boxed. */
bool ml_answer_box(ml_str text, ml_str *out);

/* The same, but a box around that box is taken whole. */
bool ml_answer_outer_box(ml_str text, ml_str *out);

/* The last line that begins "Answer:" or "####", where something stands before it. */
bool ml_answer_line(ml_str text, ml_str *out);

/* Where needle begins, the last time or the first; text.len when it does not. */
size_t ml_str_last(ml_str text, const char *needle);
size_t ml_str_first(ml_str text, const char *needle);
ml_str ml_str_from(ml_str text, size_t at);
/* How many bytes the blank at the start of s has, of those that Unicode knows; 0: none. */
size_t ml_str_blank(ml_str s);
/* Without blanks around it. */
ml_str ml_str_trim(ml_str s);
/* The same ASCII letters, whatever their case. */
bool ml_str_begins_nocase(ml_str s, const char *lower);

#endif
