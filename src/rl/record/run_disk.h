/* run_disk.h - checks that the disk has enough space for the snapshots of a run.
 *
 * thread: any. */
#ifndef ML_RL_RECORD_RUN_DISK_H
#define ML_RL_RECORD_RUN_DISK_H

#include <stdint.h>

#include "base/err.h"

typedef struct ml_run_disk {
    const char *dir;         /* need not exist yet */
    uint64_t snapshot_bytes; /* of one snapshot, all models */
    uint64_t copy_bytes; /* of the weights-only copy written with each snapshot; 0: none */
    int64_t n_save;      /* snapshots that the run will write */
    int64_t n_keep;      /* snapshots that are kept; 0: all */
} ml_run_disk;

/* Free bytes on the file system of the directory, which need not exist; UINT64_MAX: not
 * known. */
uint64_t ml_run_disk_free(const char *dir);

/* ML_EIO if there is no space for the first save, or, if their number is limited, for the
 * snapshots that are kept.  Logs a warning if there is no space for everything the run may
 * write. */
ml_status ml_run_disk_check(const ml_run_disk *d, uint64_t free_bytes, ml_err *err);

#endif
