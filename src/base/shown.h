/* shown.h - other people's text on a terminal.
 *
 * Model output, data, file names and replies of servers may hold bytes that a terminal obeys.
 * Control characters (C0 but line breaks and tabs where a caller keeps them, DEL, C1), marks
 * that turn the direction of text, and bytes that are no UTF-8 are shown as \x1b, \u202e,
 * \xff.  Shown text is UTF-8 and comes out unchanged when it is shown again.
 *
 * thread: any. */
#ifndef ML_BASE_SHOWN_H
#define ML_BASE_SHOWN_H

#include "base/str.h"

typedef enum ml_shown_breaks {
    ML_SHOWN_ONE_LINE, /* line breaks and tabs are shown as \n, \t */
    ML_SHOWN_LINES     /* they stay */
} ml_shown_breaks;

/* Appends s as it may be shown. */
void ml_text_show(ml_text *t, ml_str s, ml_shown_breaks breaks);

/* The same in place, in cap bytes with a NUL at the end; what does not fit is cut between
 * two characters. */
void ml_show_within(char *s, size_t cap, ml_shown_breaks breaks);

#endif
