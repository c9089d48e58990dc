/* local_checkpoint.h - an engine's local copy of the weights, updated version by version.
 *
 *     DIR/                          a Hugging Face checkpoint, patched in place
 *     DIR/.weight_sync/state.json   its version; absent while it is being changed
 *     DIR/.weight_sync/lock         exclusive for writers, shared for readers
 *     DIR/.weight_sync/files.json   the files of the copy (io/copy_files.h)
 *
 * The directory is initially empty.  A directory with other files is refused, and a file
 * that the manifest does not list is never changed or removed.
 *
 * A pull starts at the newest full checkpoint up to the target, or at the copy's version,
 * and applies the following deltas in order.  Every tensor is verified against its
 * checksum before it is written.  If a pull fails, the copy has no version, and the next
 * pull starts with a full checkpoint.  Engines of one machine may share a copy.
 *
 * thread: any; processes and threads are serialized by the lock. */
#ifndef ML_IO_LOCAL_CHECKPOINT_H
#define ML_IO_LOCAL_CHECKPOINT_H

#include <stdint.h>

#include "base/err.h"

/* Updates the copy in `dir` to version `target` in `source` (io/version_dir.h).  `base`
 * is version 0; target 0 starts over.  A copy with a newer version is not changed. */
ml_status ml_local_checkpoint_pull(const char *dir, const char *base, const char *source,
                                   int64_t target, ml_err *err);

/* Prevents changes until the hold is released.  ML_EPEER: the copy does not have, or no
 * longer has, this version.  Any checkpoint can be held: one that is not a copy has no
 * version (-1). */
typedef struct ml_hold {
    int fd; /* -1: nothing to hold */
} ml_hold;
ml_status ml_local_checkpoint_hold(ml_hold *out, const char *dir, int64_t version,
                                   ml_err *err);
void ml_local_checkpoint_release(ml_hold *h);

/* Marks the copy as invalid: the next pull starts with a full checkpoint. */
void ml_local_checkpoint_disown(const char *dir);

#endif
