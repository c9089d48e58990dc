/* memory_dir.h - a new directory for a fuzz target, in memory where that is possible: on a disk
 * fsync would be most of the time. */
#ifndef ML_TESTS_FUZZ_MEMORY_DIR_H
#define ML_TESTS_FUZZ_MEMORY_DIR_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bug.h"

static inline void make_memory_dir(char out[64]) {
    snprintf(out, 64, "%s/miles-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir);
    ML_BUG_IF(!mkdtemp(out));
}

/* Without ml_out's fsync. */
static inline void put_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    ML_BUG_IF(!f || fwrite(bytes, 1, n, f) != n || fclose(f));
}

#endif
