/* worker_pool_priv.h - a worker of a pool: its process, descriptors and messages.
 *
 * thread: the pool's. */
#ifndef ML_BASE_WORKER_POOL_PRIV_H
#define ML_BASE_WORKER_POOL_PRIV_H

#include "base/guarded_process.h"
#include "base/worker_pool.h"

typedef struct ml_worker_head {
    uint32_t len, kind;
    uint64_t id;
    double limit_s;
} ml_worker_head;

typedef struct ml_worker_call {
    uint64_t id; /* serial << 32 | slot */
    ml_text message;
    double limit_s;
    ml_worker_done *done;
    void *ud;
    struct ml_pool_worker *worker;      /* NULL: queued */
    struct ml_worker_call *prev, *next; /* of the queue or of the worker */
    int n_repeat;
} ml_worker_call;

typedef struct ml_call_list {
    ml_worker_call *first, *last;
    int64_t n;
} ml_call_list;

typedef enum ml_worker_state {
    ML_WORKER_DOWN,
    ML_WORKER_STARTING,
    ML_WORKER_READY
} ml_worker_state;

typedef struct ml_pool_worker {
    ml_guarded_process process;
    ml_worker_state state;
    int calls, host, log, memory; /* descriptors; -1: none */
    uint64_t *shared;
    ml_text in, out, request, reply, line;
    size_t out_at, reply_at;
    ml_call_list flight;
    int64_t window; /* calls in flight at a time */
    double started, heard, looked;
} ml_pool_worker;

/* Starts the process and queues the first message.  False: `why` has a message. */
bool ml_worker_start(const ml_worker_pool_opts *o, ml_pool_worker *w, ml_text *why);
/* Kills the process; `why`, if empty, tells how it ended. */
void ml_worker_stop(const ml_worker_pool_opts *o, ml_pool_worker *w, double linger_s,
                    ml_text *why);
void ml_worker_release(const ml_worker_pool_opts *o, ml_pool_worker *w);

/* Logs the lines that it has written; at_end: also an incomplete one. */
void ml_worker_read_log(const ml_worker_pool_opts *o, ml_pool_worker *w, bool at_end);

void ml_worker_add_message(ml_text *t, ml_worker_message kind, uint64_t id, double limit_s,
                           ml_str text);
/* The first message of `t` from *at on; false: it is not complete. */
bool ml_worker_next_message(const ml_text *t, size_t *at, ml_worker_head *h, ml_str *text);
/* Removes the messages before `at`.  False: the next one is too long to be one. */
bool ml_worker_keep_rest(ml_text *t, size_t at);

/* Reads what is there; false: the socket was closed. */
bool ml_worker_receive(int fd, ml_text *in);
/* Sends what can be sent now; errors are seen when reading. */
void ml_worker_send(int fd, ml_text *out, size_t *at);

#endif
