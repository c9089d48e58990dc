/* pool.h - a fixed thread pool for data-parallel loops.
 *
 * Work is a range [0, n) cut into pieces of `grain`; any worker may take any piece, so a
 * task must compute each index from its own inputs alone: results then cannot depend on
 * the number of threads.  The calling thread is worker 0.  Workers spin briefly before
 * they sleep, because a step is hundreds of short runs.
 *
 * A worker starts with its own share of the range, which is the same for every range of
 * that length, and then steals from others: most of the data it wrote in one run is in
 * its own caches in the next.
 *
 * Every thread, including the caller's, uses round-to-nearest and no flush-to-zero;
 * ml_pool_run asserts it.
 *
 * NULL is a pool with only the caller: code that takes a pool can also run inside a task.
 *
 * thread: one caller at a time; tasks must not call ml_pool_run on a pool with threads. */
#ifndef ML_BASE_POOL_H
#define ML_BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct ml_pool ml_pool;
typedef void ml_task(void *ud, int64_t begin, int64_t end, int worker);

/* n_thread includes the caller; at least 1, at most ML_POOL_MAX. */
#define ML_POOL_MAX 256
ml_status ml_pool_new(ml_pool **out, int n_thread, ml_err *err);
void ml_pool_free(ml_pool *p);
int ml_pool_size(const ml_pool *p);

void ml_pool_run(ml_pool *p, int64_t n, int64_t grain, ml_task *fn, void *ud);

/* Memory that a later run reads: n parts of `bytes`, of which each thread reads its own share. */
typedef struct ml_pool_ahead {
    const void *at;
    int64_t n;
    size_t bytes;
} ml_pool_ahead;

/* The same; from now on, a thread that waits prefetches the beginning of its share of `ahead` into its
 * L2 cache.  n 0: nothing. */
void ml_pool_run_ahead(ml_pool *p, int64_t n, int64_t grain, ml_task *fn, void *ud,
                       const ml_pool_ahead *ahead);

#endif
