/* host_memory.h - what the process may still take of the host's memory.
 *
 * thread: any. */
#ifndef ML_TRAIN_HOST_MEMORY_H
#define ML_TRAIN_HOST_MEMORY_H

#include <stddef.h>

/* The least of: what the machine has left; what each control group (v1 or v2) allows that the
 * process is in, its own and those around it; what is left of its address space (ulimit -v).
 * root: what stands before /proc and /sys in the names of files, "" outside tests.
 * SIZE_MAX: nothing limits it. */
size_t ml_host_memory_left(const char *root);

/* The number after a word at the beginning of a line of a file; SIZE_MAX: there is none. */
size_t ml_host_memory_number(const char *path, const char *word);

#endif
