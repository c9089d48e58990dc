/* file.h - whole files: mapped for reading, replaced atomically for writing.
 *
 * A reader accesses the page cache directly.  A writer fills a temporary file next to the
 * target; commit syncs it and renames it over the target.  Readers therefore see the
 * complete old file or the complete new one, even if the process or the machine dies in
 * between.
 *
 * thread: a mapped file is immutable; a file being written has one owner. */
#ifndef ML_BASE_FILE_H
#define ML_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "base/write_behind.h"

typedef struct ml_file {
    char *path; /* as given to ml_file_map, for messages */
    ml_str bytes;
} ml_file;

/* Read-only.  An empty file is allowed.  If another process truncates the file in place
 * while it is mapped, the reader gets SIGBUS; replacing it, as ml_out does, is safe. */
ml_status ml_file_map(ml_file *out, const char *path, ml_err *err);
/* The same for an open file, which the caller closes; path is for messages. */
ml_status ml_file_map_fd(ml_file *out, int fd, const char *path, ml_err *err);
/* Whether there is such a file; like ml_file_map, it knows the files of a GGUF model
 * (base/gguf_files.h): MODEL.gguf/config.json etc. */
bool ml_file_there(const char *path);
void ml_file_unmap(ml_file *f); /* zero-initialized is allowed */

/* Drops whole pages inside the range from resident memory; they are read from the file
 * again on the next access. */
void ml_file_forget(const ml_file *f, size_t offset, size_t n);

/* A file being written.  Opened by ml_out_open, closed by exactly one of commit and
 * abort. */
typedef struct ml_out {
    char *path, *temp;
    int fd;
    ml_write_behind *behind; /* of a large file; NULL: none yet */
} ml_out;

ml_status ml_out_open(ml_out *out, const char *path, ml_err *err);
/* Pieces may come in any order; gaps read as zeros.  The error of a large piece may be
 * reported by a later call. */
ml_status ml_out_write(ml_out *o, size_t offset, ml_str bytes, ml_err *err);
/* On failure the temporary file is removed and the target is unchanged. */
ml_status ml_out_commit(ml_out *o, ml_err *err);
void ml_out_abort(ml_out *o); /* also allowed after commit, and on zeros */

/* The length of NAME if `name` is the name of a temporary file for NAME; otherwise 0. */
size_t ml_out_temp_base(const char *name);

/* Open, write, commit. */
ml_status ml_file_replace(const char *path, ml_str bytes, ml_err *err);

#endif
