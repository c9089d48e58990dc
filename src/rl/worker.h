/* worker.h - a long-lived process that answers lines with lines.
 *
 * The command runs under /bin/sh with one socket as standard input and output.  A question
 * is a line, the answer is the next line.  A worker that dies, hangs or runs past its
 * memory limit is killed, with all its children, and started again for the next question,
 * so that a late answer never meets a later question.  So is one that is caught saying more
 * than it was asked.
 *
 * thread: one at a time. */
#ifndef ML_RL_WORKER_H
#define ML_RL_WORKER_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_worker ml_worker;

typedef enum ml_worker_end {
    ML_WORKER_ANSWERED,
    ML_WORKER_LATE, /* no answer before the deadline: killed */
    ML_WORKER_DIED
} ml_worker_end;

/* Nothing is started yet.  memory_bytes bounds the address space; 0: no bound. */
ml_worker *ml_worker_new(const char *command, int64_t memory_bytes);
void ml_worker_free(ml_worker *w); /* kills; NULL is fine */

/* Sends `line`, which holds no line break, and waits for the answer, which is left in `out`
 * without its line break.  Otherwise `out` says in a sentence what happened.  A worker that
 * had to be started has start_s more. */
ml_worker_end ml_worker_ask(ml_worker *w, ml_text *out, ml_str line, double deadline_s,
                            double start_s);

/* Kills the worker; the next question finds a new one.  For answers that make no sense. */
void ml_worker_restart(ml_worker *w);

#endif
