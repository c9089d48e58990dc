/* child.h - a process that this one starts, and that ends with it.
 *
 * What it says on standard output is read here, line by line or not at all; what it says on
 * standard error is added to a file.  It is in a process group of its own, so that an interrupt
 * from the terminal is the parent's alone, and inherits no other file.  When the thread that
 * started it ends, however that happens, the system kills it.
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
    int out;   /* the end of the pipe that is read; never blocks */
} ml_child;

/* program: its path.  argv: as for main, with a NULL at its end.  env: "NAME=value" in place of
 * this process's variables of these names, with a NULL at its end; NULL: none.  Other users see
 * argv, but not env. */
ml_status ml_child_start(ml_child *out, const char *program, const char *const *argv,
                         const char *const *env, const char *log, ml_err *err);

/* Adds what it has said since the last call. */
void ml_child_hear(ml_child *c, ml_text *out);

/* Whether it has ended; then *status is as waitpid gives it, and it is no more. */
bool ml_child_ended(ml_child *c, int *status);
void ml_child_kill(ml_child *c); /* waits until it is gone; zeros are fine */

/* "ended with status 2", "was ended by signal 9". */
void ml_child_tell_end(ml_text *out, int status);

#endif
