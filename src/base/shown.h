/* shown.h - escapes untrusted text for a terminal.
 *
 * Model output, data, file names and replies of servers may contain control sequences.
 * Control characters (C0, unless the caller keeps line breaks and tabs; DEL; C1),
 * bidirectional marks and invalid UTF-8 are escaped as \x1b, \u202e, \xff.  The result is
 * UTF-8, and escaping it again does not change it.
 *
 * thread: any. */
#ifndef ML_BASE_SHOWN_H
#define ML_BASE_SHOWN_H

#include "base/str.h"

typedef enum ml_shown_breaks {
    ML_SHOWN_ONE_LINE, /* line breaks and tabs are escaped as \n, \t */
    ML_SHOWN_LINES     /* they are kept */
} ml_shown_breaks;

/* Appends s, escaped. */
void ml_text_show(ml_text *t, ml_str s, ml_shown_breaks breaks);

/* The same in place, in cap bytes with a NUL at the end; text that does not fit is cut
 * between two characters. */
void ml_show_within(char *s, size_t cap, ml_shown_breaks breaks);

#endif
