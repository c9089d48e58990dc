/* weight_path.h - checks the directories that requests name.
 *
 * Requests that change weights name directories of this machine.  The server resolves such
 * a path, with its symbolic links and "..", and the result must be below one of its roots.
 *
 * thread: any but the event loop's: the functions access the file system and may block. */
#ifndef ML_SERVE_WEIGHT_PATH_H
#define ML_SERVE_WEIGHT_PATH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

typedef struct ml_weight_roots {
    const char *const *dir; /* [n]; n 0: the parent of the model's directory */
    int n;
    const char *model_path;
} ml_weight_roots;

/* Copies a request's string as a path; errors name `member`.  ML_EUSAGE: it has a NUL. */
ml_status ml_weight_path_of(const char **out, ml_arena *a, ml_str text, const char *member,
                            ml_err *err);

/* Resolves the path, which need not exist.  ML_EUSAGE: not below a root. */
ml_status ml_weight_path_check(const char **out, ml_arena *a, const ml_weight_roots *roots,
                               const char *path, const char *member, ml_err *err);

#endif
