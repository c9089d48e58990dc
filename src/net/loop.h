/* loop.h - one thread's event loop: timers, signals, and work posted by other threads.
 *
 * thread: the thread that runs the loop, except for ml_loop_post and ml_loop_stop, which
 * any thread may call. */
#ifndef ML_NET_LOOP_H
#define ML_NET_LOOP_H

#include <stdbool.h>

#include "base/err.h"

typedef struct ml_loop ml_loop;
typedef struct ml_timer ml_timer;
typedef void ml_loop_fn(void *ud);

ml_status ml_loop_new(ml_loop **out, ml_err *err);
void ml_loop_free(ml_loop *l); /* posted work that has not run is dropped */
void ml_loop_run(ml_loop *l);  /* until stopped */
void ml_loop_stop(ml_loop *l);

/* Queues fn(ud) to run on the loop's thread, in the order of posting. */
void ml_loop_post(ml_loop *l, ml_loop_fn *fn, void *ud);

/* Calls fn after `seconds`, and then every `seconds` when repeat is set. */
ml_timer *ml_timer_start(ml_loop *l, double seconds, bool repeat, ml_loop_fn *fn, void *ud);
/* Frees the timer; also needed after a one-shot timer has fired.  NULL is allowed. */
void ml_timer_stop(ml_timer *t);

/* Calls fn(ud) when the process gets the signal. */
ml_status ml_loop_on_signal(ml_loop *l, int signal, ml_loop_fn *fn, void *ud, ml_err *err);

#endif
