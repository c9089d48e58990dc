/* worker_pool.h - worker processes that answer many calls at once.
 *
 * A call is a message to a worker; its answer comes whenever the worker has it, in any
 * order.  A message is a head of 24 bytes, { u32 length, u32 kind, u64 number, f64 seconds }
 * in the machine's byte order, and its text.  A worker has these descriptors:
 *
 *     3  calls and answers
 *     4  its own requests to this program, each of which waits for an answer
 *     5  memory that it shares with this program; the first 8 bytes are the number of the
 *        call that it is running, 0: none
 *
 * and what it writes to standard output and standard error is logged.
 *
 * Nothing a worker does stops the program.  A worker that dies, hangs, exceeds its memory or
 * sends an invalid message is killed with all its children and started again.  The call that
 * it was running fails; its other calls are repeated, a few times at most.
 *
 * thread: calls from any thread; answers arrive on the pool's thread.  Open and close from
 * one. */
#ifndef ML_BASE_WORKER_POOL_H
#define ML_BASE_WORKER_POOL_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define ML_WORKER_SHARED 4096 /* offset of the caller's part of the shared memory */

typedef enum ml_worker_message {
    ML_WORKER_HELLO,   /* the first one; answered by "ready WINDOW", or by why not */
    ML_WORKER_CALL,    /* and its answer */
    ML_WORKER_ALIVE,   /* from a worker, twice a second while it runs calls */
    ML_WORKER_OVERDUE, /* from a worker: the call took longer than its limit */
} ml_worker_message;

typedef struct ml_worker_pool ml_worker_pool;

/* Strings must outlive the pool. */
typedef struct ml_worker_pool_opts {
    const char *line;        /* for /bin/sh; NULL: no workers */
    const char *name;        /* in messages */
    ml_str hello;            /* the text of the first message */
    int64_t n;               /* processes; 0: 1 */
    int64_t memory_bytes;    /* of a worker with its children; 0: no limit */
    const char *memory_flag; /* that sets it, for messages */
    size_t shared_bytes;     /* the caller's part of the shared memory; 0: none */
    /* Answers a request of a worker, on the pool's thread. */
    void (*serve)(void *ud, ml_str request, ml_text *answer);
    void *ud;
} ml_worker_pool_opts;

typedef enum ml_worker_end {
    ML_WORKER_ANSWERED,
    ML_WORKER_LATE, /* the call took longer than its limit */
    ML_WORKER_DIED,
} ml_worker_end;

/* On the pool's thread.  `text` is the answer, or a message; valid during the call. */
typedef void ml_worker_done(void *ud, ml_worker_end end, ml_str text);

/* Returns when all workers are ready; otherwise the message of the first that is not. */
ml_status ml_worker_pool_open(ml_worker_pool **out, const ml_worker_pool_opts *opts,
                              ml_err *err);
/* Kills the workers; calls in flight end as DIED.  NULL is allowed. */
void ml_worker_pool_close(ml_worker_pool *p);

/* Copies the request.  limit_s: of the function's running time. */
void ml_worker_pool_call(ml_worker_pool *p, ml_str request, double limit_s,
                         ml_worker_done *done, void *ud);
/* Makes a call and waits for its end. */
ml_worker_end ml_worker_pool_ask(ml_worker_pool *p, ml_text *answer, ml_str request,
                                 double limit_s);

/* The shared memory of a pool of one worker; it stays when the worker is started again. */
void *ml_worker_pool_shared(ml_worker_pool *p);

#endif
