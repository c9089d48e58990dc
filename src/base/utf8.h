/* utf8.h - strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef ML_BASE_UTF8_H
#define ML_BASE_UTF8_H

#include <stdint.h>

#include "base/str.h"

/* Examines the bytes at p, with n > 0 bytes left.  Returns the length of a whole
 * character; 0 if the text ends inside one; -k if the first k bytes are invalid (k as in
 * U+FFFD substitution: the longest part that could have become a character). */
int ml_utf8_look(const char *p, size_t n);
/* Bytes of s before the first invalid one; s.len if all are valid. */
size_t ml_utf8_valid(ml_str s);
/* The longest prefix of s of at most max bytes that does not end inside a character. */
ml_str ml_utf8_cut(ml_str s, size_t max);
/* The character at p in valid text; *p advances past it. */
uint32_t ml_utf8_next(const char **p);
/* The last character before p in valid text; *p moves back to it. */
uint32_t ml_utf8_prev(const char **p);
/* Writes c, 1 to 4 bytes; returns the count. */
int ml_utf8_put(char out[4], uint32_t c);

#endif
