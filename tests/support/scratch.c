#include "tests/support/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/bug.h"

static char *dir; /* of this process: a test runs in its own */
static ml_arena paths = { .tag = "test paths" };

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_dir(void) {
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ml_arena_release(&paths);
}

const char *ml_test_dir(void) {
    const char *base = getenv("TMPDIR");

    if (dir)
        return dir;
    dir = ml_arena_printf(&paths, "%s/miles-test-XXXXXX", base ? base : P_tmpdir);
    ML_BUG_IF(!mkdtemp(dir));
    atexit(remove_dir);
    return dir;
}

const char *ml_test_path(const char *name) {
    return ml_arena_printf(&paths, "%s/%s", ml_test_dir(), name);
}
