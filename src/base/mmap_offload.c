#include "base/mmap_offload.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"

ml_status ml_mmap_offload_open(void **out, size_t bytes, const char *dir, ml_err *err) {
    ml_text path = { 0 };
    ml_status st = ML_OK;
    void *p = MAP_FAILED;
    int fd;

    *out = NULL;
    ml_text_printf(&path, "%s/miles-spill-XXXXXX", dir);
    fd = mkstemp(path.ptr);
    if (fd >= 0)
        unlink(path.ptr);
    /* Allocates disk space now: a full disk must not become a bus error in the middle of
     * a step. */
    if (fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        st = ml_fail(err, ML_EIO, "%s: cannot map a file of %zu bytes: %s", dir, bytes,
                     strerror(errno ? errno : ENOSPC));
    else
        *out = p;
    if (fd >= 0)
        close(fd);
    ml_text_release(&path);
    return st;
}

void ml_mmap_offload_close(void *p, size_t bytes) {
    if (p)
        munmap(p, bytes);
}
