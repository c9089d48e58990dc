/* local_checkpoint.h - an engine's own copy of the weights, brought from version to version.
 *
 *     DIR/                          a Hugging Face checkpoint, patched in place
 *     DIR/.weight_sync/state.json   its version; not there while it is being changed
 *     DIR/.weight_sync/lock         held by who changes it, shared by who reads it
 *     DIR/.weight_sync/files.json   the files of the copy (io/copy_files.h)
 *
 * The directory is empty at first.  One that holds files of somebody else is refused, and a file
 * that the manifest does not list is never changed or removed.
 *
 * A pull begins at the newest version before the target that is whole, or at the version the
 * copy has, and applies the deltas from there on, in their order.  Every tensor is held against
 * its checksum before it is written.  When a pull fails the copy has no version, and the next
 * one begins with a whole checkpoint.  Engines of one machine may share a copy.
 *
 * thread: any; processes and threads wait for each other. */
#ifndef ML_IO_LOCAL_CHECKPOINT_H
#define ML_IO_LOCAL_CHECKPOINT_H

#include <stdint.h>

#include "base/err.h"

/* Brings the copy in `dir` to version `target` of what `source` has (io/version_dir.h).  `base`
 * is version 0; asking for 0 begins anew.  A copy that is ahead stays. */
ml_status ml_local_checkpoint_pull(const char *dir, const char *base, const char *source,
                                   int64_t target, ml_err *err);

/* Nobody changes it until the hold is ended.  ML_EPEER: it is not, or no longer, of this
 * version.  Any checkpoint can be held: one that is no copy has no version (-1). */
typedef struct ml_hold {
    int fd; /* -1: there is nothing to hold */
} ml_hold;
ml_status ml_local_checkpoint_hold(ml_hold *out, const char *dir, int64_t version,
                                   ml_err *err);
void ml_local_checkpoint_release(ml_hold *h);

/* It is not what it should be: the next pull begins with a whole checkpoint. */
void ml_local_checkpoint_disown(const char *dir);

#endif
