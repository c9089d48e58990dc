/* dir.h - directories: made, listed, synced, removed.
 *
 * thread: any. */
#ifndef ML_BASE_DIR_H
#define ML_BASE_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* Makes it and what is missing above it; one that exists is fine. */
ml_status ml_dir_make(const char *path, ml_err *err);

/* Makes it, and gives its path from the root, for processes that work elsewhere; in the
 * arena. */
ml_status ml_dir_make_whole(const char **out, ml_arena *a, const char *path, ml_err *err);

/* Names in it, sorted by bytes, without "." and ".."; in the arena. */
typedef struct ml_names {
    const char **name;
    int32_t n;
} ml_names;
ml_status ml_dir_list(ml_names *out, const char *path, ml_arena *a, ml_err *err);

/* What was renamed or made in it is on disk. */
ml_status ml_dir_sync(const char *path, ml_err *err);

/* With everything in it; links are removed, not followed. */
ml_status ml_dir_remove(const char *path, ml_err *err);

#endif
