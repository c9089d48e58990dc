/* wrap.h - a line of text wrapped to the width of a terminal.
 *
 * thread: any. */
#ifndef ML_CLI_WRAP_H
#define ML_CLI_WRAP_H

#include "base/str.h"

/* Appends the line in pieces of at most `width` columns, at least 20, with line breaks between
 * them but not after the last.  It is broken at double blanks where it has any inside, as
 * columns of numbers do, else at blanks; what has none is broken anywhere.  Pieces after the
 * first are indented. */
void ml_wrap(ml_text *out, const char *line, int width);

/* Columns that a UTF-8 text takes. */
int ml_columns(ml_str s);

#endif
