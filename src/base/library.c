#include "base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* Beside the program in a build directory; ../lib/miles of an installation. */
static const char *const places[] = { "", "../lib/miles/" };

bool ml_library_find(char *path, size_t cap, const char *name) {
    char dir[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir);

    while (n > 0 && dir[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && i < sizeof places / sizeof *places; i++) {
        int len = snprintf(path, cap, "%.*s%s%s", (int)n, dir, places[i], name);
        if (len > 0 && (size_t)len < cap && access(path, F_OK) == 0)
            return true;
    }
    return false;
}

void *ml_library_open(const char *name, bool shared) {
    int how = RTLD_NOW | (shared ? RTLD_GLOBAL : RTLD_LOCAL);
    char path[PATH_MAX + 256];

    return dlopen(ml_library_find(path, sizeof path, name) ? path : name, how);
}
