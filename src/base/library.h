/* library.h - shared objects of this program that are loaded when they are needed. */
#ifndef ML_BASE_LIBRARY_H
#define ML_BASE_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* Looks for a library in the program's directory, then in ../lib/miles of it, where
 * `make install` puts it. */
bool ml_library_find(char *path, size_t cap, const char *name);

/* Opens what ml_library_find finds, else what the system's library path has; NULL: dlerror
 * says why.  shared: its symbols are visible to libraries that are loaded later.  A library
 * is never unloaded: neither CUDA's runtime nor MPI survives dlclose. */
void *ml_library_open(const char *name, bool shared);

#endif
