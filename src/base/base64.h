/* base64.h - base64 encoding, with padding.
 *
 * thread: any; no state. */
#ifndef ML_BASE_BASE64_H
#define ML_BASE_BASE64_H

#include "base/str.h"

void ml_base64_write(ml_text *out, const void *bytes, size_t n);

/* out holds at least 3/4 of the text's length.  Returns the number of bytes, or -1: not
 * valid base64. */
int64_t ml_base64_read(void *out, ml_str text);

#endif
