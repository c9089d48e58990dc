/* delta_writer.h - writes a version that is a delta (io/version_dir.h), tensor by tensor.
 *
 * The directory gets its final name once it is complete.
 *
 * thread: one owner. */
#ifndef ML_IO_DELTA_WRITER_H
#define ML_IO_DELTA_WRITER_H

#include "io/version_dir.h"

typedef struct ml_delta_writer ml_delta_writer;

typedef struct ml_delta_opts {
    const char *source; /* directory of the versions; it exists */
    ml_delta_encoding encoding;
    ml_checksum checksum;
    size_t file_bytes; /* a file is closed at this size; 0: one file */
} ml_delta_opts;

ml_status ml_delta_writer_open(ml_delta_writer **out, const ml_delta_opts *o,
                               int64_t version, int64_t base, ml_err *err);
/* Adds a tensor's change from one version to the next; *n_changed of its bytes differ; if
 * none does, the tensor is omitted. */
ml_status ml_delta_writer_add(ml_delta_writer *w, ml_str name, const void *old,
                              const void *now, size_t n, size_t *n_changed, ml_err *err);
/* Bytes so far, without headers. */
size_t ml_delta_writer_bytes(const ml_delta_writer *w);
/* The directory while it is being written: files created there become part of it. */
const char *ml_delta_writer_dir(const ml_delta_writer *w);

/* Both free the writer. */
ml_status ml_delta_writer_commit(ml_delta_writer *w, ml_err *err);
void ml_delta_writer_abort(ml_delta_writer *w); /* NULL is allowed */

#endif
