/* weight_path.h - which directories a request may name.
 *
 * Requests that change weights name directories of this machine.  Such a path is resolved, with
 * its links and "..", and must then lie below one of the server's prefixes.
 *
 * thread: any; it asks the file system, so not the loop's. */
#ifndef ML_SERVE_WEIGHT_PATH_H
#define ML_SERVE_WEIGHT_PATH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

typedef struct ml_weight_roots {
    const char *const *dir; /* [n]; none: the directory that holds the model's */
    int n;
    const char *model_path;
} ml_weight_roots;

/* A string of a request as a path; "member" is its name there.  ML_EUSAGE: it has a NUL. */
ml_status ml_weight_path_of(const char **out, ml_arena *a, ml_str text, const char *member,
                            ml_err *err);

/* Where the path leads.  ML_EUSAGE: not below a root.  It need not exist. */
ml_status ml_weight_path_check(const char **out, ml_arena *a, const ml_weight_roots *roots,
                               const char *path, const char *member, ml_err *err);

#endif
