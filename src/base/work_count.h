/* tally.h - how much of a piece of work is done: counted by who works, read by who shows it.
 *
 * NULL is fine everywhere: nobody shows it.
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

/* There are n pieces more to do. */
static inline void ml_work_count_expect(ml_work_count *t, int64_t n) {
    if (t)
        atomic_fetch_add_explicit(&t->total, n, memory_order_relaxed);
}

/* One piece is done. */
static inline void ml_work_count_add(ml_work_count *t) {
    if (t)
        atomic_fetch_add_explicit(&t->done, 1, memory_order_relaxed);
}

#endif
