/* work_count.h - progress of a task: workers count, the progress display reads.
 *
 * NULL is allowed everywhere: nothing is counted.
 *
 * thread: any. */
#ifndef ML_BASE_WORK_COUNT_H
#define ML_BASE_WORK_COUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ml_work_count {
    _Atomic int64_t done, total;
} ml_work_count;

static inline void ml_work_count_clear(ml_work_count *t) {
    if (!t)
        return;
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->total, 0, memory_order_relaxed);
}

/* Adds n pieces to the expected work. */
static inline void ml_work_count_expect(ml_work_count *t, int64_t n) {
    if (t)
        atomic_fetch_add_explicit(&t->total, n, memory_order_relaxed);
}

/* Counts one finished piece. */
static inline void ml_work_count_add(ml_work_count *t) {
    if (t)
        atomic_fetch_add_explicit(&t->done, 1, memory_order_relaxed);
}

#endif
