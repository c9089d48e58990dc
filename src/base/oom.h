/* oom.h - handling of out-of-memory, and budgets of bytes.
 *
 * Code that builds tables and texts does not check each allocation.  When the system has
 * no memory, such code ends the process with a message, unless the thread is inside
 * ml_memory_try: then ml_memory_try returns false, and the caller reports an error.
 * Memory that the function had allocated by then must belong to objects that the caller
 * releases (an arena, a text inside a struct): local texts would leak.
 *
 * A budget limits the bytes of several owners together.  An arena with a budget charges
 * its blocks to it; inside ml_memory_try, a block beyond the budget is a shortage of
 * memory.
 *
 * thread: any; a budget may be shared between threads. */
#ifndef ML_BASE_OOM_H
#define ML_BASE_OOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef void ml_memory_fn(void *ud);

/* Runs fn(ud); false if memory ran out.  Calls may be nested. */
bool ml_memory_try(ml_memory_fn *fn, void *ud);
/* Whether a shortage on this thread is reported to a caller of ml_memory_try. */
bool ml_memory_recoverable(void);
_Noreturn void ml_memory_out(size_t bytes, const char *what);
/* realloc that does not return NULL. */
void *ml_memory_grow(void *p, size_t bytes, const char *what);

typedef struct ml_budget {
    atomic_size_t used;
    size_t max; /* 0: no limit */
} ml_budget;

/* False, without a charge, if the limit would be exceeded. */
bool ml_budget_take(ml_budget *b, size_t bytes);
/* Charges unconditionally. */
void ml_budget_charge(ml_budget *b, size_t bytes);
void ml_budget_give(ml_budget *b, size_t bytes);

#endif
