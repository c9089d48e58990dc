/* str.h - text with a length.  Views point into memory owned elsewhere; they are
 * NUL-terminated only where a comment says so. */
#ifndef ML_BASE_STR_H
#define ML_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ml_str {
    const char *ptr;
    size_t len;
} ml_str;

ml_str ml_str_of(const char *cstr);
bool ml_str_eq(ml_str a, ml_str b);
bool ml_str_is(ml_str a, const char *cstr);

/* What JSON counts as space. */
static inline bool ml_is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Growing text on the heap, always NUL-terminated; out of memory ends the process. */
typedef struct ml_text {
    char *ptr;
    size_t len, cap;
} ml_text;

/* Copies s to out[cap]; a text that does not fit ends in "..." after a whole character. */
void ml_str_copy(char *out, size_t cap, ml_str s);

void ml_text_release(ml_text *t);
void ml_text_add(ml_text *t, const char *bytes, size_t n);
/* Lengthens the text by n bytes, which the caller writes, and returns their place. */
char *ml_text_room(ml_text *t, size_t n);
__attribute__((format(printf, 2, 3))) void ml_text_printf(ml_text *t, const char *fmt, ...);
__attribute__((format(printf, 2, 0))) void ml_text_vprintf(ml_text *t, const char *fmt,
                                                           va_list ap);
/* The template with the first occurrence of `place`, if any, replaced by a number. */
void ml_text_fill(ml_text *t, const char *form, const char *place, int64_t number);

/* Edit distance, for "did you mean". */
int ml_str_distance(ml_str a, ml_str b);

#endif
