/* host_memory.h - how much host memory the process can still allocate.
 *
 * thread: any. */
#ifndef ML_TRAIN_HOST_MEMORY_H
#define ML_TRAIN_HOST_MEMORY_H

#include <stddef.h>

/* The minimum of: the machine's available memory; the remaining limit of the process's
 * control group (v1 or v2) and of each of its ancestors; the remaining address space
 * (ulimit -v).  root: prefix of /proc and /sys paths, "" outside tests.  SIZE_MAX: no
 * limit. */
size_t ml_host_memory_left(const char *root);

/* The number after a word at the beginning of a line of a file; SIZE_MAX: not found. */
size_t ml_host_memory_number(const char *path, const char *word);

#endif
