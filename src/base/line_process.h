/* line_process.h - a long-lived worker process that answers each line with a line.
 *
 * The command runs under /bin/sh with one socket as standard input and output.  A request
 * is a line, the response is the next line.  A worker that dies, hangs, exceeds its
 * memory limit or writes more than one line per request is killed with all its children,
 * and restarted for the next request, so that a late response is never matched to a later
 * request.
 *
 * thread: one at a time; the thread that starts a worker must outlive it
 * (guarded_process.h). */
#ifndef ML_BASE_LINE_PROCESS_H
#define ML_BASE_LINE_PROCESS_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_line_process ml_line_process;

/* The command of a worker.  Strings are copied. */
typedef struct ml_worker_command {
    const char *line; /* for /bin/sh; NULL: no worker */
    const char *name; /* in messages; NULL: the line */
} ml_worker_command;

typedef enum ml_line_process_end {
    ML_LINE_PROCESS_ANSWERED,
    ML_LINE_PROCESS_LATE, /* no answer before the deadline: killed */
    ML_LINE_PROCESS_DIED
} ml_line_process_end;

/* Whether path is "cmd:" and a command line. */
static inline bool ml_worker_command_is(const char *path) {
    return path[0] == 'c' && path[1] == 'm' && path[2] == 'd' && path[3] == ':';
}

/* Does not start the worker yet.  memory_bytes, --reward-memory, limits the resident
 * memory of the worker and its children; 0: no limit. */
ml_line_process *ml_line_process_new(const ml_worker_command *command,
                                     int64_t memory_bytes);
void ml_line_process_free(ml_line_process *w); /* kills; NULL is allowed */

/* Sends `line`, which contains no line break, and waits for the response, which is stored
 * in `out` without its line break.  On failure `out` has a message.  Starts the worker if
 * necessary.  The first request after the first start has an extra minute; later ones have
 * the deadline alone. */
ml_line_process_end ml_line_process_ask(ml_line_process *w, ml_text *out, ml_str line,
                                        double deadline_s);

/* Kills the worker after invalid responses; the next request starts a new one. */
void ml_line_process_restart(ml_line_process *w);

#endif
