#include "base/oom.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

/* Where a shortage on this thread is reported; NULL: it ends the process. */
static _Thread_local jmp_buf *recovery;

bool ml_memory_try(ml_memory_fn *fn, void *ud) {
    jmp_buf *volatile outer = recovery;
    jmp_buf here;

    if (setjmp(here)) {
        recovery = outer;
        return false;
    }
    recovery = &here;
    fn(ud);
    recovery = outer;
    return true;
}

bool ml_memory_recoverable(void) {
    return recovery != NULL;
}

void ml_memory_out(size_t bytes, const char *what) {
    if (recovery)
        longjmp(*recovery, 1);
    fprintf(stderr, "miles: out of memory: %zu bytes for %s\n", bytes, what);
    exit(1);
}

void *ml_memory_grow(void *p, size_t bytes, const char *what) {
    void *grown = realloc(p, bytes);

    if (!grown)
        ml_memory_out(bytes, what);
    return grown;
}

bool ml_budget_take(ml_budget *b, size_t bytes) {
    size_t used = atomic_load(&b->used);

    do
        if (b->max && (used > b->max || bytes > b->max - used))
            return false;
    while (!atomic_compare_exchange_weak(&b->used, &used, used + bytes));
    return true;
}

void ml_budget_charge(ml_budget *b, size_t bytes) {
    atomic_fetch_add(&b->used, bytes);
}

void ml_budget_give(ml_budget *b, size_t bytes) {
    atomic_fetch_sub(&b->used, bytes);
}
