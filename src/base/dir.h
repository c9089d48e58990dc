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

/* The directory temp takes the name path.  A directory that has the name already is removed
 * afterwards.  The two exchange their names in one call; a file system that cannot do that
 * (NFS, FUSE) gets three: the old one is renamed to path.replaced, temp to path, and the old
 * one is removed.  Whenever the process dies, path or path.replaced is whole. */
#define ML_DIR_REPLACED ".replaced"
ml_status ml_dir_replace(const char *temp, const char *path, ml_err *err);
/* Finishes a replacement that a crash interrupted: path.replaced gets its name back when there
 * is no path, and is removed when there is one.  Does nothing without a path.replaced. */
ml_status ml_dir_recover(const char *path, ml_err *err);

/* With everything in it; links are removed, not followed. */
ml_status ml_dir_remove(const char *path, ml_err *err);
/* Of what lies in it, all whose name is_old() says so of; `than` is handed on. */
ml_status ml_dir_tidy(const char *path, bool (*is_old)(const char *name, int64_t than),
                      int64_t than, ml_err *err);

#endif
