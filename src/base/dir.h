/* dir.h - creates, lists, syncs and removes directories.
 *
 * thread: any. */
#ifndef ML_BASE_DIR_H
#define ML_BASE_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* Creates the directory and its missing parents; an existing one is not an error. */
ml_status ml_dir_make(const char *path, ml_err *err);

/* Creates the directory and returns its absolute path, for processes with another working
 * directory; in the arena. */
ml_status ml_dir_make_whole(const char **out, ml_arena *a, const char *path, ml_err *err);

/* The names in it, sorted by bytes, without "." and ".."; in the arena. */
typedef struct ml_names {
    const char **name;
    int32_t n;
} ml_names;
ml_status ml_dir_list(ml_names *out, const char *path, ml_arena *a, ml_err *err);

/* Flushes renames and new entries of the directory to disk. */
ml_status ml_dir_sync(const char *path, ml_err *err);

/* Renames the directory temp to path, replacing a directory of that name.  The two
 * exchange their names in one call, and the old one is then removed.  A file system
 * without exchange (NFS, FUSE) needs three calls: the old one is renamed to
 * path.replaced, temp to path, and the old one is removed.  Whenever the process dies,
 * path or path.replaced is complete. */
#define ML_DIR_REPLACED ".replaced"
ml_status ml_dir_replace(const char *temp, const char *path, ml_err *err);
/* Completes a replacement that a crash interrupted: path.replaced is renamed back if
 * there is no path, and removed if there is one.  Does nothing without a path.replaced. */
ml_status ml_dir_recover(const char *path, ml_err *err);

/* Removes it recursively; links are removed, not followed. */
ml_status ml_dir_remove(const char *path, ml_err *err);
/* Removes the entries for whose name is_old() returns true; `than` is passed to it. */
ml_status ml_dir_tidy(const char *path, bool (*is_old)(const char *name, int64_t than),
                      int64_t than, ml_err *err);

#endif
