/* run_disk.h - whether the disk has room for what a run will save.
 *
 * thread: any. */
#ifndef ML_RL_RUN_DISK_H
#define ML_RL_RUN_DISK_H

#include <stdint.h>

#include "base/err.h"

typedef struct ml_run_disk {
    const char *dir;         /* need not be there yet */
    uint64_t snapshot_bytes; /* of one, all models */
    uint64_t copy_bytes;     /* of the weights alone that are written with each; 0: none */
    int64_t n_save;          /* snapshots that the run will write */
    int64_t n_keep;          /* of which so many stay; 0: all */
} ml_run_disk;

/* What is free where the directory is or will be; UINT64_MAX: not known. */
uint64_t ml_run_disk_free(const char *dir);

/* ML_EIO when there is no room for the first save, or for those that are kept where their
 * number is limited; a warning when there is none for all that the run may write. */
ml_status ml_run_disk_check(const ml_run_disk *d, uint64_t free_bytes, ml_err *err);

#endif
