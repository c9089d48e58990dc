/* zst.h - zstd compression of files and buffers.
 *
 * thread: any. */
#ifndef ML_IO_ZST_H
#define ML_IO_ZST_H

#include "base/err.h"
#include "base/str.h"

/* Replaces the file atomically. */
ml_status ml_zst_write(const char *path, ml_str bytes, ml_err *err);
/* Appends the content of the file, one frame or several; more than max bytes are
 * refused. */
ml_status ml_zst_read(ml_text *out, const char *path, size_t max, ml_err *err);

/* Passes the content of the file to `sink` in pieces; a sink that fails ends it. */
typedef ml_status ml_zst_sink(void *ud, ml_str piece, ml_err *err);
ml_status ml_zst_stream(const char *path, ml_zst_sink *sink, void *ud, ml_err *err);

/* Appends one frame with the bytes; level 1 is the fastest. */
ml_status ml_zst_pack(ml_text *out, ml_str bytes, int level, ml_err *err);
/* Decompresses one frame, at most `most` bytes; the caller frees *out.  The caller
 * prefixes the error message. */
ml_status ml_zst_unpack(void **out, size_t *n, ml_str frame, size_t most, ml_err *err);

/* Decodes frames of known size one after the other, without the cost of a new context for
 * each.  *d is NULL before the first call.  Returns the number of bytes, or -1. */
typedef struct ml_zst_decoder ml_zst_decoder;
int64_t ml_zst_decode(ml_zst_decoder **d, void *out, size_t n, ml_str frames);
void ml_zst_decoder_free(ml_zst_decoder *d); /* NULL is allowed */

#endif
