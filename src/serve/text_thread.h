/* text_thread.h - one thread for work on text that would hold up the event loop.
 *
 * Large requests are parsed, rendered and tokenized there, and large replies are written
 * there; small ones are handled on the loop at once.  Work is done in the order it came.
 *
 * thread: the loop's, but for `run`. */
#ifndef ML_SERVE_TEXT_THREAD_H
#define ML_SERVE_TEXT_THREAD_H

#include "base/arena.h"
#include "net/loop.h"

typedef struct ml_text_thread ml_text_thread;
typedef struct ml_text_work ml_text_work;

struct ml_text_work {
    void (*run)(void *ud); /* on the text thread */
    ml_loop_fn *done;      /* on the loop's, after run */
    void *ud;
    ml_text_work *next;
};

/* In `a`. */
ml_status ml_text_thread_open(ml_text_thread **out, ml_loop *l, ml_arena *a, ml_err *err);
/* Waits for what it is doing; what has not begun is dropped, and `done` of what ended may
 * not be called.  NULL is fine. */
void ml_text_thread_close(ml_text_thread *t);

/* w stays the caller's and lives until `done`. */
void ml_text_thread_add(ml_text_thread *t, ml_text_work *w);

#endif
