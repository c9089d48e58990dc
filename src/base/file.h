/* file.h - whole files: mapped for reading, replaced atomically for writing.
 *
 * A reader sees the bytes where they lie in the page cache.  A writer fills a
 * temporary file next to the target, and only commit, after fsync, renames it over
 * the target: whoever opens the path finds the old file or the new one, never half
 * of either, also when the process or the machine dies in between.
 *
 * thread: a mapped file is immutable; a file being written has one owner. */
#ifndef ML_BASE_FILE_H
#define ML_BASE_FILE_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_file {
    char *path; /* as given to ml_file_map, for messages */
    ml_str bytes;
} ml_file;

/* Read-only.  An empty file is fine.  Whoever shortens the file in place while it is mapped
 * kills the reader (SIGBUS); replacing it, as ml_out does, is harmless. */
ml_status ml_file_map(ml_file *out, const char *path, ml_err *err);
void ml_file_unmap(ml_file *f); /* zeros are fine */

/* The caller is done with these bytes: whole pages inside the range leave resident memory
 * and are read from the file again if touched. */
void ml_file_forget(const ml_file *f, size_t offset, size_t n);

/* A file being written.  Opened by ml_out_open, ended by exactly one of commit and abort. */
typedef struct ml_out {
    char *path, *temp;
    int fd;
} ml_out;

ml_status ml_out_open(ml_out *out, const char *path, ml_err *err);
/* Pieces come in any order; what was never written between them reads as zeros. */
ml_status ml_out_write(ml_out *o, size_t offset, ml_str bytes, ml_err *err);
/* On failure the temporary file is removed and the target is as it was. */
ml_status ml_out_commit(ml_out *o, ml_err *err);
void ml_out_abort(ml_out *o); /* also fine after commit, and on zeros */

/* The length of NAME when `name` is that of a temporary file for NAME; 0: it is not one. */
size_t ml_out_temp_base(const char *name);

/* Open, write, commit. */
ml_status ml_file_replace(const char *path, ml_str bytes, ml_err *err);

#endif
