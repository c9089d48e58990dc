/* write_behind.h - writes a file on a thread of its own, so that making the data and writing
 * it take place at the same time.
 *
 * The thread also asks the kernel to write each piece to disk at once: a later fsync then
 * waits for the last pieces only.
 *
 * thread: one producer. */
#ifndef ML_BASE_WRITE_BEHIND_H
#define ML_BASE_WRITE_BEHIND_H

#include <stddef.h>

#include "base/str.h"

typedef struct ml_write_behind ml_write_behind;

/* The first write that failed. */
typedef struct ml_write_failure {
    int why; /* errno; 0: none failed */
    size_t offset, bytes;
} ml_write_failure;

/* Writes all bytes to fd. */
ml_write_failure ml_write_at(int fd, size_t offset, ml_str bytes);

/* NULL: there is no memory or no thread for it. */
ml_write_behind *ml_write_behind_open(int fd);
/* Copies the bytes; waits while all buffers are in use. */
ml_write_failure ml_write_behind_put(ml_write_behind *w, size_t offset, ml_str bytes);
/* Waits until everything is written.  NULL is allowed. */
ml_write_failure ml_write_behind_close(ml_write_behind *w);

#endif
