/* utf8.h - characters as bytes: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef ML_BASE_UTF8_H
#define ML_BASE_UTF8_H

#include <stdint.h>

#include "base/str.h"

/* What stands at p, with n > 0 bytes left: the length of a whole character; 0 when the
 * text ends inside one; -k when the first k bytes begin no character (k as in U+FFFD
 * substitution: the longest part that could have become one). */
int ml_utf8_look(const char *p, size_t n);
/* Bytes of s before the first that is no UTF-8; s.len when all is well. */
size_t ml_utf8_valid(ml_str s);
/* The longest beginning of s of at most max bytes that does not end inside a character. */
ml_str ml_utf8_cut(ml_str s, size_t max);
/* The character at p in valid text; *p moves past it. */
uint32_t ml_utf8_next(const char **p);
/* The last character before p in valid text; *p moves onto it. */
uint32_t ml_utf8_prev(const char **p);
/* Writes c, 1 to 4 bytes; returns how many. */
int ml_utf8_put(char out[4], uint32_t c);

#endif
