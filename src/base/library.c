#include "base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

void *ml_library_open(const char *name, bool shared) {
    int how = RTLD_NOW | (shared ? RTLD_GLOBAL : RTLD_LOCAL);
    char path[PATH_MAX + 256];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);

    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n > 0 && snprintf(path + n, sizeof path - (size_t)n, "%s", name) < 256 &&
        access(path, F_OK) == 0)
        return dlopen(path, how);
    return dlopen(name, how);
}
