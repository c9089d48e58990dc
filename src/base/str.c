#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"

ml_str ml_str_of(const char *cstr) {
    return (ml_str){ cstr, strlen(cstr) };
}

bool ml_str_eq(ml_str a, ml_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool ml_str_is(ml_str a, const char *cstr) {
    return ml_str_eq(a, ml_str_of(cstr));
}

void ml_text_release(ml_text *t) {
    free(t->ptr);
    *t = (ml_text){ 0 };
}

static void reserve(ml_text *t, size_t more) {
    size_t cap = t->cap ? t->cap : 256;

    if (t->ptr && t->cap - t->len > more)
        return;
    if (more > SIZE_MAX / 4 - t->len)
        ml_memory_out(more, "text");
    while (cap - t->len <= more)
        cap *= 2;
    t->ptr = ml_memory_grow(t->ptr, cap, "text");
    t->cap = cap;
}

void ml_text_add(ml_text *t, const char *bytes, size_t n) {
    reserve(t, n);
    if (n)
        memcpy(t->ptr + t->len, bytes, n);
    t->len += n;
    t->ptr[t->len] = 0;
}

char *ml_text_room(ml_text *t, size_t n) {
    reserve(t, n);
    t->len += n;
    t->ptr[t->len] = 0;
    return t->ptr + t->len - n;
}

void ml_text_vprintf(ml_text *t, const char *fmt, va_list ap) {
    va_list again;
    int n;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    reserve(t, (size_t)n);
    vsnprintf(t->ptr + t->len, (size_t)n + 1, fmt, ap);
    t->len += (size_t)n;
}

void ml_text_printf(ml_text *t, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    ml_text_vprintf(t, fmt, ap);
    va_end(ap);
}

void ml_text_fill(ml_text *t, const char *template, const char *place, int64_t number) {
    const char *at = strstr(template, place);

    if (at)
        ml_text_printf(t, "%.*s%lld%s", (int)(at - template), template, (long long)number,
                       at + strlen(place));
    else
        ml_text_printf(t, "%s", template);
}

void ml_str_copy(char *out, size_t cap, ml_str s) {
    size_t n = s.len < cap ? s.len : cap - 4;

    while (n < s.len && n > 0 && ((unsigned char)s.ptr[n] & 0xC0) == 0x80)
        n--; /* inside a UTF-8 character */
    memmove(out, s.ptr, n);
    memcpy(out + n, n < s.len ? "..." : "", n < s.len ? 4 : 1);
}

int ml_str_distance(ml_str a, ml_str b) {
    /* Two rows of the table suffice; longer names are never similar. */
    int row[2][65];

    if (a.len > 64 || b.len > 64)
        return 64;
    for (size_t j = 0; j <= b.len; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= a.len; i++) {
        int *up = row[(i - 1) & 1], *now = row[i & 1];
        now[0] = (int)i;
        for (size_t j = 1; j <= b.len; j++) {
            int best = up[j - 1] + (a.ptr[i - 1] != b.ptr[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            now[j] = best;
        }
    }
    return row[a.len & 1][b.len];
}
