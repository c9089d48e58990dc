/* guarded_process.h - a process that never outlives this program, nor do its children.
 *
 * The command runs under /bin/sh and leads a process group.  A second process, the guard,
 * waits until this program ends, for whatever reason, and then kills the group.
 *
 * thread: one at a time; the thread that starts the process must outlive it. */
#ifndef ML_BASE_GUARDED_PROCESS_H
#define ML_BASE_GUARDED_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/str.h"

#define ML_GUARDED_FDS 8

typedef struct ml_guarded_process {
    pid_t pid; /* 0: none */
    pid_t guard;
    int guard_fd;
} ml_guarded_process;

/* fd[i], which is not closed here, becomes descriptor i of the process; it inherits no
 * other one, except standard error if n < 3.  On false `why` has a message. */
bool ml_guarded_process_start(ml_guarded_process *p, const char *line, const int *fd, int n,
                              ml_text *why);

/* Kills the process with all its descendants, in its group or not; *status is its exit
 * status.  linger_s: how long it may take to exit by itself first. */
void ml_guarded_process_stop(ml_guarded_process *p, double linger_s, int *status);

#endif
