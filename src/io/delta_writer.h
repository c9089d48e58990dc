/* delta_writer.h - writes a version that is a delta (io/version_dir.h), tensor by tensor.
 *
 * The directory appears under its name when all of it is there.
 *
 * thread: one owner. */
#ifndef ML_IO_DELTA_WRITER_H
#define ML_IO_DELTA_WRITER_H

#include "io/version_dir.h"

typedef struct ml_delta_writer ml_delta_writer;

typedef struct ml_delta_opts {
    const char *source; /* where versions are; it exists */
    ml_delta_encoding encoding;
    ml_checksum checksum;
    size_t file_bytes; /* a file is ended when it has so many; 0: one file */
} ml_delta_opts;

ml_status ml_delta_writer_open(ml_delta_writer **out, const ml_delta_opts *o,
                               int64_t version, int64_t base, ml_err *err);
/* A tensor from one version to the next; *n_changed of its bytes are different, and with none
 * it is left out. */
ml_status ml_delta_writer_add(ml_delta_writer *w, ml_str name, const void *old,
                              const void *now, size_t n, size_t *n_changed, ml_err *err);
/* So far, without headers. */
size_t ml_delta_writer_bytes(const ml_delta_writer *w);
/* The directory while it is being written: files put there become part of it. */
const char *ml_delta_writer_dir(const ml_delta_writer *w);

/* Both free the writer. */
ml_status ml_delta_writer_commit(ml_delta_writer *w, ml_err *err);
void ml_delta_writer_abort(ml_delta_writer *w); /* NULL is fine */

#endif
