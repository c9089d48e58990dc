/* answer.h - finds the answer in a response.
 *
 * thread: any; results point into the given text. */
#ifndef ML_RL_REWARD_ANSWER_H
#define ML_RL_REWARD_ANSWER_H

#include <stdbool.h>

#include "base/str.h"

/* The contents of the last \boxed{...}, exactly as Miles finds it: counts all braces, and
 * looks only at the last box. */
bool ml_answer_last_box(ml_str text, ml_str *out);

/* The contents of the last complete box: ignores escaped braces, allows a space after the
 * macro, and accepts \fbox if there is no \boxed. */
bool ml_answer_box(ml_str text, ml_str *out);

/* The same, but if that box is nested in another, the outer box. */
bool ml_answer_outer_box(ml_str text, ml_str *out);

/* The rest of the last line, if it begins with "Answer:" or "####" and is not the only
 * line. */
bool ml_answer_line(ml_str text, ml_str *out);

/* Offset of the last or first occurrence of needle; text.len if there is none. */
size_t ml_str_last(ml_str text, const char *needle);
size_t ml_str_first(ml_str text, const char *needle);
ml_str ml_str_from(ml_str text, size_t at);
/* Length in bytes of the Unicode white space character at the start of s; 0: none. */
size_t ml_str_blank(ml_str s);
/* Removes white space at both ends. */
ml_str ml_str_trim(ml_str s);
/* Case-insensitive for ASCII letters. */
bool ml_str_begins_nocase(ml_str s, const char *lower);

#endif
