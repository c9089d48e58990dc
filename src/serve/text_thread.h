/* text_thread.h - one thread for work on text that would block the event loop.
 *
 * It parses, renders and tokenizes large requests and writes large replies; the event loop
 * handles small ones itself.  Work runs in FIFO order.
 *
 * thread: the event loop's, except for `run`. */
#ifndef ML_SERVE_TEXT_THREAD_H
#define ML_SERVE_TEXT_THREAD_H

#include "base/arena.h"
#include "net/loop.h"

typedef struct ml_text_thread ml_text_thread;
typedef struct ml_text_work ml_text_work;

struct ml_text_work {
    void (*run)(void *ud); /* on the text thread */
    ml_loop_fn *done;      /* on the loop's thread, after run */
    void *ud;
    ml_text_work *next;
};

/* Allocated in `a`. */
ml_status ml_text_thread_open(ml_text_thread **out, ml_loop *l, ml_arena *a, ml_err *err);
/* Waits for the running work and drops queued work.  `done` of finished work may not be
 * called.  NULL is allowed. */
void ml_text_thread_close(ml_text_thread *t);

/* The caller owns w and keeps it alive until `done`. */
void ml_text_thread_add(ml_text_thread *t, ml_text_work *w);

#endif
