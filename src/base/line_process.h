/* worker.h - a long-lived process that answers lines with lines.
 *
 * The command runs under /bin/sh with one socket as standard input and output.  A question
 * is a line, the answer is the next line.  A worker that dies, hangs or runs past its
 * memory limit is killed, with all its children, and started again for the next question,
 * so that a late answer never meets a later question.  So is one that is caught saying more
 * than it was asked.
 *
 * A worker leads a process group.  A second process waits for this program's end, however
 * that comes, and then kills the group.
 *
 * thread: one at a time; the thread that starts a worker must outlive it. */
#ifndef ML_BASE_LINE_PROCESS_H
#define ML_BASE_LINE_PROCESS_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_line_process ml_line_process;

/* What is started.  Strings are copied. */
typedef struct ml_worker_command {
    const char *line; /* for /bin/sh; NULL: there is no worker */
    const char *name; /* in messages; NULL: the line */
    const char
        *hello; /* sent after every start; the worker answers "ready" or {"error": why}
                          before its first question.  NULL: none */
} ml_worker_command;

typedef enum ml_line_process_end {
    ML_LINE_PROCESS_ANSWERED,
    ML_LINE_PROCESS_LATE, /* no answer before the deadline: killed */
    ML_LINE_PROCESS_DIED
} ml_line_process_end;

/* Nothing is started yet.  memory_bytes, --reward-memory, bounds the resident memory of the
 * worker and its children; 0: no bound. */
ml_line_process *ml_line_process_new(const ml_worker_command *command,
                                     int64_t memory_bytes);
void ml_line_process_free(ml_line_process *w); /* kills; NULL is fine */

/* Starts the worker where there is none and waits, a minute at most, until it is ready.
 * Otherwise `out` says in a sentence what happened. */
ml_line_process_end ml_worker_start(ml_line_process *w, ml_text *out);

/* Sends `line`, which holds no line break, and waits for the answer, which is left in `out`
 * without its line break.  Otherwise `out` says in a sentence what happened.  A worker that
 * has to be started is started first.  Where the command has no hello, the first question
 * after the very first start has a minute more; later ones have the deadline alone. */
ml_line_process_end ml_line_process_ask(ml_line_process *w, ml_text *out, ml_str line,
                                        double deadline_s);

/* Kills the worker; the next question finds a new one.  For answers that make no sense. */
void ml_line_process_restart(ml_line_process *w);

#endif
