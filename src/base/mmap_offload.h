/* mmap_offload.h - memory mapped from a file: the kernel writes it out when memory is
 * short.
 *
 * The file is unlinked once it is mapped, so nothing is left behind, however the process
 * ends.
 *
 * thread: as any memory. */
#ifndef ML_BASE_MMAP_OFFLOAD_H
#define ML_BASE_MMAP_OFFLOAD_H

#include <stddef.h>

#include "base/err.h"

/* Zero-filled and page-aligned, in a file in directory dir. */
ml_status ml_mmap_offload_open(void **out, size_t bytes, const char *dir, ml_err *err);
void ml_mmap_offload_close(void *p, size_t bytes); /* NULL is allowed */

#endif
