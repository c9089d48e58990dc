/* access_log.h - a file with a line for each request.
 *
 * Lines are written by a thread of their own, so that a slow disk delays no request.  While
 * more than ML_ACCESS_LOG_BYTES wait for it, lines are dropped and counted.
 *
 * thread: put and reopen: the event loop's; the others: any. */
#ifndef ML_SERVE_ACCESS_LOG_H
#define ML_SERVE_ACCESS_LOG_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define ML_ACCESS_LOG_BYTES ((size_t)8 << 20)

typedef struct ml_access_log ml_access_log;

/* Appends to the file, which only this user can read if it is new.  max_bytes: a longer file
 * is renamed to FILE.1, whose predecessor is replaced, and begun again; 0: never. */
ml_status ml_access_log_open(ml_access_log **out, const char *path, size_t max_bytes,
                             ml_err *err);
/* `line` without its line feed. */
void ml_access_log_put(ml_access_log *g, ml_str line);
/* Opens the path again: another program has renamed the file. */
void ml_access_log_reopen(ml_access_log *g);
int64_t ml_access_log_dropped(ml_access_log *g);
void ml_access_log_close(ml_access_log *g); /* writes what waits; NULL is allowed */

#endif
