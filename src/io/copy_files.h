/* copy_files.h - the files of an engine's copy of the weights that this program wrote.
 *
 *     DIR/.weight_sync/files.json   {"files": ["config.json", "model.safetensors", ...]}
 *
 * A directory with this manifest belongs to this program.  A file that the manifest does
 * not list is neither replaced nor removed.
 *
 * thread: any; the caller holds the copy's lock while the manifest changes. */
#ifndef ML_IO_COPY_FILES_H
#define ML_IO_COPY_FILES_H

#include "base/dir.h"
#include "base/map.h"

#define ML_COPY_SYNC ".weight_sync"

typedef struct ml_copy_files {
    ml_map index;  /* name to index in list */
    ml_names list; /* of files, plain names */
} ml_copy_files;

/* ML_EUSAGE: the directory has files but no manifest.  A missing or empty one is
 * allowed. */
ml_status ml_copy_dir_check(const char *dir, ml_arena *a, ml_err *err);

/* An empty list if there is no manifest. */
ml_status ml_copy_files_read(ml_copy_files *out, const char *dir, ml_arena *a, ml_err *err);
bool ml_copy_files_has(const ml_copy_files *f, const char *name);

/* Called before the files of `fresh` are written: none of them may exist unless `old`
 * lists it; then the manifest lists both. */
ml_status ml_copy_files_claim(const ml_copy_files *old, const ml_names *fresh,
                              const char *dir, ml_arena *a, ml_err *err);
/* Called after they were written: removes files of `old` that are not in `fresh`, and
 * temporary files of killed writers; then the manifest lists `fresh` alone. */
ml_status ml_copy_files_settle(const ml_copy_files *old, const ml_names *fresh,
                               const char *dir, ml_arena *a, ml_err *err);

#endif
