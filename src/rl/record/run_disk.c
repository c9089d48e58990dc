#include "rl/record/run_disk.h"

#include <stdbool.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "base/str.h"

/* Removes the last component of a path; the parent of a single component is ".". */
static void go_up(ml_text *path) {
    char *slash = strrchr(path->ptr, '/');
    bool top = slash == path->ptr;

    path->len = slash ? (size_t)(slash - path->ptr) : 0;
    if (!slash || top)
        ml_text_printf(path, top ? "/" : ".");
    path->ptr[path->len] = 0;
}

/* Uses the directory, or its nearest existing parent. */
uint64_t ml_run_disk_free(const char *dir) {
    struct statvfs fs = { 0 };
    ml_text path = { 0 };
    int failed;

    ml_text_printf(&path, "%s", dir);
    while ((failed = statvfs(path.ptr, &fs)) != 0 && path.len > 1)
        go_up(&path);
    ml_text_release(&path);
    if (failed || !fs.f_blocks) /* some network file systems do not report it */
        return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* Bytes of n coexisting snapshots and of the weights-only copy of every save. */
static double bytes_of(const ml_run_disk *d, int64_t n) {
    return (double)d->snapshot_bytes * (double)n +
           (double)d->copy_bytes * (double)(d->n_keep ? d->n_save : n);
}

ml_status ml_run_disk_check(const ml_run_disk *d, uint64_t free_bytes, ml_err *err) {
    /* An old snapshot is removed only after the new one is complete. */
    int64_t most = d->n_keep && d->n_keep < d->n_save ? d->n_keep + 1 : d->n_save;
    int64_t needed = d->n_keep || d->n_save < 1 ? most : 1;
    double one = (double)(d->snapshot_bytes + d->copy_bytes) / 1e9;
    double room = (double)free_bytes / 1e9;

    if (free_bytes == UINT64_MAX)
        return ML_OK;
    if (bytes_of(d, needed) > (double)free_bytes)
        return ml_fail(
            err, ML_EIO,
            "a snapshot needs %.3f GB in %s, and the run keeps %lld, %.3f GB in total, but "
            "%.3f GB are free: free space, choose another directory with --save, lower "
            "--keep-last, or omit the optimizer state with --no-save-optim",
            one, d->dir, (long long)needed, bytes_of(d, needed) / 1e9, room);
    if (bytes_of(d, most) > (double)free_bytes)
        ml_log(ML_LOG_WARN,
               "the run may save %lld snapshots of %.3f GB to %s, %.3f GB in total, but "
               "%.3f GB are free: limit it with --keep-last or a larger --save-interval",
               (long long)most, one, d->dir, bytes_of(d, most) / 1e9, room);
    return ML_OK;
}
