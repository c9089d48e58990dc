/* child.h - a child process that ends with its parent.
 *
 * The parent can read the child's standard output, line by line; standard error is
 * appended to a file.  The child has its own process group, so that an interrupt from the
 * terminal goes to the parent alone, and inherits no other file descriptor.  When the
 * thread that started it ends, for whatever reason, the kernel kills the child.
 *
 * thread: one owner, which starts it. */
#ifndef ML_BASE_CHILD_H
#define ML_BASE_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_child {
    pid_t pid; /* 0: none */
    int out;   /* read end of the pipe; non-blocking */
} ml_child;

/* program: its path.  argv: as for main, NULL-terminated.  env: "NAME=value" entries that
 * override this process's environment, NULL-terminated; NULL: none.  Other users can see
 * argv, but not env. */
ml_status ml_child_start(ml_child *out, const char *program, const char *const *argv,
                         const char *const *env, const char *log, ml_err *err);

/* Appends the output since the last call. */
void ml_child_read(ml_child *c, ml_text *out);

/* Whether the child has ended; then *status is as from waitpid, and the child is reaped. */
bool ml_child_ended(ml_child *c, int *status);
void ml_child_kill(ml_child *c); /* waits until it has ended; zero-initialized is allowed */

/* "exited with status 2", "was killed by signal 9". */
void ml_child_format_end(ml_text *out, int status);

#endif
