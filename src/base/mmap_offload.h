/* spill.h - memory whose home is a file: the system writes it out when memory is short.
 *
 * The file has no name once it is mapped, so nothing is left behind, however the process
 * ends.
 *
 * thread: as any memory. */
#ifndef ML_BASE_MMAP_OFFLOAD_H
#define ML_BASE_MMAP_OFFLOAD_H

#include <stddef.h>

#include "base/err.h"

/* Zeros, aligned to a page, in a file of directory dir. */
ml_status ml_mmap_offload_open(void **out, size_t bytes, const char *dir, ml_err *err);
void ml_mmap_offload_close(void *p, size_t bytes); /* NULL is fine */

#endif
