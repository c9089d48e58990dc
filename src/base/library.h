/* library.h - shared objects of this program that are loaded when they are needed. */
#ifndef ML_BASE_LIBRARY_H
#define ML_BASE_LIBRARY_H

#include <stdbool.h>

/* Looks in the program's directory, then in the system's library path; NULL: dlerror says
 * why.  shared: its symbols are visible to libraries that are loaded later.  A library is
 * never unloaded: neither CUDA's runtime nor MPI survives dlclose. */
void *ml_library_open(const char *name, bool shared);

#endif
