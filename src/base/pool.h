/* pool.h - a fixed set of threads that divide outputs among them.
 *
 * Work is a range [0, n) cut into pieces of `grain`; any worker may take any piece,
 * so a task must compute each index from its own inputs alone: results then cannot
 * depend on the number of threads.  The calling thread is worker 0.  Workers spin a
 * little before they sleep, because a step is hundreds of short runs.
 *
 * A worker begins with its own share of the range, the same of every range of that length,
 * and helps others when it is done: what it wrote in one run it mostly finds in its own
 * caches in the next.
 *
 * Every thread, the caller's included, has round-to-nearest and no flush-to-zero;
 * ml_pool_run asserts it.
 *
 * NULL is a pool of its caller alone: what takes a pool can also be a piece of a task.
 *
 * thread: one caller at a time; tasks must not call ml_pool_run on a pool with threads. */
#ifndef ML_BASE_POOL_H
#define ML_BASE_POOL_H

#include <stdint.h>

#include "base/err.h"

typedef struct ml_pool ml_pool;
typedef void ml_task(void *ud, int64_t begin, int64_t end, int worker);

/* n_thread counts the caller; at least 1, at most ML_POOL_MAX. */
#define ML_POOL_MAX 256
ml_status ml_pool_new(ml_pool **out, int n_thread, ml_err *err);
void ml_pool_free(ml_pool *p);
int ml_pool_size(const ml_pool *p);

void ml_pool_run(ml_pool *p, int64_t n, int64_t grain, ml_task *fn, void *ud);

#endif
