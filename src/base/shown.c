#include "base/shown.h"

#include <string.h>

#include "base/utf8.h"

static bool turns_direction(uint32_t c) {
    return c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

static bool is_control(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x2028 || c == 0x2029;
}

/* Length of the longest prefix that needs no change. */
static size_t harmless(ml_str s, ml_shown_breaks breaks) {
    size_t at = 0;

    while (at < s.len) {
        const char *p = s.ptr + at;
        int n = ml_utf8_look(p, s.len - at);
        uint32_t c;
        if (n <= 0)
            return at;
        c = ml_utf8_next(&p);
        if (turns_direction(c) ||
            (is_control(c) && !(breaks == ML_SHOWN_LINES && (c == '\n' || c == '\t'))))
            return at;
        at += (size_t)n;
    }
    return at;
}

/* Writes one character or byte escaped; returns the bytes consumed. */
static size_t show_one(ml_text *t, ml_str s) {
    const char *p = s.ptr;
    int n = ml_utf8_look(p, s.len);
    uint32_t c;

    if (n <= 0) {
        ml_text_printf(t, "\\x%02x", (unsigned)(unsigned char)*p);
        return 1;
    }
    c = ml_utf8_next(&p);
    if (c == '\n' || c == '\t' || c == '\r')
        ml_text_printf(t, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
    else
        ml_text_printf(t, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c);
    return (size_t)n;
}

void ml_text_show(ml_text *t, ml_str s, ml_shown_breaks breaks) {
    for (;;) {
        size_t n = harmless(s, breaks);
        ml_text_add(t, s.ptr, n);
        s = (ml_str){ s.ptr + n, s.len - n };
        if (!s.len)
            return;
        n = show_one(t, s);
        s = (ml_str){ s.ptr + n, s.len - n };
    }
}

void ml_show_within(char *s, size_t cap, ml_shown_breaks breaks) {
    ml_str all = { s, strnlen(s, cap - 1) };
    ml_text t = { 0 };

    /* A text that fills the buffer was cut there: do not cut inside a character. */
    if (all.len + 1 == cap && all.len > 3)
        for (size_t back = 1; back <= 3; back++)
            if (ml_utf8_look(s + all.len - back, back) == 0) {
                all.len -= back;
                s[all.len] = 0;
                break;
            }
    if (harmless(all, breaks) == all.len)
        return;
    ml_text_show(&t, all, breaks);
    ml_str_copy(s, cap, (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}
