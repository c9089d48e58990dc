/* base64.h - bytes as text of 64 letters, with padding.
 *
 * thread: any; nothing is kept. */
#ifndef ML_BASE_BASE64_H
#define ML_BASE_BASE64_H

#include "base/str.h"

void ml_base64_write(ml_text *out, const void *bytes, size_t n);

/* out holds at least 3/4 of the text's length.  The number of bytes, or -1: it is no base64. */
int64_t ml_base64_read(void *out, ml_str text);

#endif
