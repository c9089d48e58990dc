/* wrap.h - wraps a line of text to the width of a terminal.
 *
 * thread: any. */
#ifndef ML_CLI_WRAP_H
#define ML_CLI_WRAP_H

#include "base/str.h"

/* Appends the line in pieces of at most `width` columns, at least 20, with line breaks
 * between them but not after the last.  The line is broken at double blanks if it
 * contains any, as in columns of numbers, otherwise at blanks; text without blanks is
 * broken anywhere.  Pieces after the first are indented. */
void ml_wrap(ml_text *out, const char *line, int width);

/* The columns of a UTF-8 text. */
int ml_columns(ml_str s);
/* The text as far as it fits into so many columns. */
ml_str ml_clip(ml_str s, int columns);

#endif
