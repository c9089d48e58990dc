/* arena.h - memory with one lifetime.
 *
 * Bookkeeping (tables, names, parsed documents) comes from an arena and is freed
 * with it, never piece by piece.  Allocation does not return a failure: without memory the
 * process ends with the arena's tag, or ml_memory_try returns false (base/oom.h).
 * Capacity (weights, activations, KV) does not come from here: see tensor/device.h.  In
 * builds with AddressSanitizer a poisoned redzone follows each object.
 *
 * thread: one thread at a time. */
#ifndef ML_BASE_ARENA_H
#define ML_BASE_ARENA_H

#include <stddef.h>

typedef struct ml_arena_block ml_arena_block;

typedef struct ml_arena {
    const char *tag; /* static string, printed when memory runs out */
    ml_arena_block *last;
    size_t total;             /* bytes allocated from the system so far */
    struct ml_budget *budget; /* counts `total`; set by the owner after init; NULL: none */
} ml_arena;

void ml_arena_init(ml_arena *a, const char *tag);
void ml_arena_release(ml_arena *a);

/* n objects of `size` bytes, zeroed, aligned to 16; the product is checked. */
void *ml_arena_take(ml_arena *a, size_t n, size_t size);

/* A NUL-terminated copy of n bytes. */
char *ml_arena_str(ml_arena *a, const char *s, size_t n);
__attribute__((format(printf, 2, 3))) char *ml_arena_printf(ml_arena *a, const char *fmt,
                                                            ...);

#define ML_NEW(arena, type, n) ((type *)ml_arena_take((arena), (size_t)(n), sizeof(type)))

#endif
