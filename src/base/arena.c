#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"

/* Under AddressSanitizer each object is followed by a poisoned redzone, and memory that
 * no object occupies is poisoned, so that an overflow between two objects of one block is
 * reported. */
#if defined __SANITIZE_ADDRESS__
#define REDZONES 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define REDZONES 1
#endif
#endif
#ifdef REDZONES
#include <sanitizer/asan_interface.h>
#define REDZONE_BYTES 32
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define REDZONE_BYTES 0
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

struct ml_arena_block {
    ml_arena_block *prev;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

void ml_arena_init(ml_arena *a, const char *tag) {
    *a = (ml_arena){ .tag = tag };
}

void ml_arena_release(ml_arena *a) {
    ml_arena_block *b = a->last;
    while (b) {
        ml_arena_block *prev = b->prev;
        UNPOISON(b->bytes, b->size);
        free(b);
        b = prev;
    }
    if (a->budget)
        ml_budget_give(a->budget, a->total);
    *a = (ml_arena){ .tag = a->tag, .budget = a->budget };
}

/* Where a shortage cannot be reported, the budget is charged and may be exceeded. */
static void count(ml_arena *a, size_t bytes) {
    if (!a->budget)
        return;
    if (!ml_memory_recoverable())
        ml_budget_charge(a->budget, bytes);
    else if (!ml_budget_take(a->budget, bytes))
        ml_memory_out(bytes, a->tag);
}

static ml_arena_block *grow(ml_arena *a, size_t bytes) {
    /* Doubling keeps the number of blocks logarithmic for parsers of large files. */
    size_t size = a->last ? a->last->size * 2 : 4096;
    ml_arena_block *b;

    if (size > (size_t)1 << 22)
        size = (size_t)1 << 22;
    if (size < bytes)
        size = bytes;
    count(a, sizeof *b + size);
    a->total += sizeof *b + size;
    b = ml_memory_grow(NULL, sizeof *b + size, a->tag);
    *b = (ml_arena_block){ .prev = a->last, .size = size };
    POISON(b->bytes, size);
    a->last = b;
    return b;
}

void *ml_arena_take(ml_arena *a, size_t n, size_t size) {
    ml_arena_block *b = a->last;
    size_t bytes, reserved;
    void *p;

    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 4)
        ml_memory_out(SIZE_MAX, a->tag);
    reserved = ((bytes + 15) & ~(size_t)15) + REDZONE_BYTES;
    if (!b || b->size - b->used < reserved)
        b = grow(a, reserved);
    p = b->bytes + b->used;
    b->used += reserved;
    UNPOISON(p, bytes);
    return memset(p, 0, bytes);
}

char *ml_arena_str(ml_arena *a, const char *s, size_t n) {
    char *p = ml_arena_take(a, n + 1, 1);
    if (n)
        memcpy(p, s, n);
    return p;
}

char *ml_arena_printf(ml_arena *a, const char *fmt, ...) {
    va_list ap;
    int n;
    char *p;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    p = ml_arena_take(a, (size_t)n + 1, 1);
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}
