/* zst.h - whole files compressed with zstd.
 *
 * thread: any. */
#ifndef ML_IO_ZST_H
#define ML_IO_ZST_H

#include "base/err.h"
#include "base/str.h"

/* Replaces the file, atomically. */
ml_status ml_zst_write(const char *path, ml_str bytes, ml_err *err);
/* Appends what the file holds, one frame or several; more than max bytes are refused. */
ml_status ml_zst_read(ml_text *out, const char *path, size_t max, ml_err *err);

#endif
