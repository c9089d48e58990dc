/* Limits and errors of a rendering. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

static void describe(ml_jtrap *t, size_t at, const char *kind, const char *fmt,
                     va_list ap) {
    va_list again;
    int n;
    char *message;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    message = ml_arena_take(t->arena, (size_t)n + 1, 1);
    vsnprintf(message, (size_t)n + 1, fmt, again);
    va_end(again);
    t->kind = kind;
    t->message = (ml_str){ message, (size_t)n };
    t->at = at;
}

void ml_jtrap_throw(ml_jtrap *t, size_t at, const char *kind, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    describe(t, at, kind, fmt, ap);
    va_end(ap);
    longjmp(t->door, 1);
}

void ml_jraise(ml_jrun *r, const char *kind, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    describe(&r->trap, r->at, kind, fmt, ap);
    va_end(ap);
    longjmp(r->trap.door, 1);
}

/* "Class object": the name of the container in error messages of Jinja. */
static void describe_object(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    const char *room = "";

    if (v.kind == ML_J_NONE) {
        ml_jbuf_printf(r, b, "None");
        return;
    }
    if (v.kind == ML_J_NAMESPACE || v.kind == ML_J_CYCLER || v.kind == ML_J_JOINER)
        room = "jinja2.utils.";
    else if (v.kind == ML_J_LOOP || v.kind == ML_J_MACRO || v.kind == ML_J_SELF ||
             v.kind == ML_J_BLOCK || v.kind == ML_J_UNDEFINED)
        room = "jinja2.runtime.";
    else if (v.kind == ML_J_STR && v.s->markup)
        room = "markupsafe.";
    ml_jbuf_printf(r, b, "%s%s object", room, ml_jval_type(v));
}

void ml_jraise_undef(ml_jrun *r, ml_jval undef) {
    const ml_jundef *u = undef.undef;
    ml_jbuf b = { 0 }, object = { 0 };

    if (u->hint.len) {
        ml_jbuf_str(r, &b, u->hint);
    } else if (u->obj.kind == ML_J_MISSING) {
        ml_jval_repr(r, &b, u->name);
        ml_jbuf_printf(r, &b, " is undefined");
    } else {
        describe_object(r, &object, u->obj);
        if (u->name.kind == ML_J_STR)
            ml_jval_repr(r, &b, ml_jbuf_value(r, &object));
        else
            ml_jbuf_add(r, &b, object.ptr, object.len);
        ml_jbuf_printf(
            r, &b, u->name.kind == ML_J_STR ? " has no attribute " : " has no element ");
        ml_jval_repr(r, &b, u->name);
    }
    ml_jraise(r, u->error, "%.*s", (int)b.len, b.ptr);
}

void ml_jrun_step(ml_jrun *r, int64_t n) {
    r->steps += n;
    if (r->steps > r->max_steps)
        ml_jraise(r, "LimitError", "the template exceeds %lld steps",
                  (long long)r->max_steps);
}

void ml_jrun_enter(ml_jrun *r) {
    if (++r->depth > r->max_depth)
        ml_jraise(r, "RecursionError", "maximum recursion depth exceeded");
    ml_jrun_step(r, 1);
}

void ml_jrun_leave(ml_jrun *r) {
    r->depth--;
}

void *ml_jrun_take(ml_jrun *r, size_t n, size_t size) {
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes) || bytes > (size_t)r->max_bytes ||
        r->arena.total + bytes > (size_t)r->max_bytes)
        ml_jraise(r, "LimitError", "the template exceeds %lld bytes of memory",
                  (long long)r->max_bytes);
    ml_jrun_step(r, (int64_t)(bytes / 64));
    return ml_arena_take(&r->arena, n, size);
}

/* --- text buffers
 * ----------------------------------------------------------------------- */

static void reserve(ml_jrun *r, ml_jbuf *b, size_t more) {
    size_t cap = b->cap ? b->cap : 64;
    char *p;

    if (b->cap - b->len >= more)
        return;
    while (cap - b->len < more)
        cap *= 2;
    p = ml_jrun_take(r, cap, 1);
    if (b->len)
        memcpy(p, b->ptr, b->len);
    b->ptr = p;
    b->cap = cap;
}

void ml_jbuf_add(ml_jrun *r, ml_jbuf *b, const char *s, size_t n) {
    if (!n)
        return;
    reserve(r, b, n);
    memcpy(b->ptr + b->len, s, n);
    b->len += n;
}

void ml_jbuf_str(ml_jrun *r, ml_jbuf *b, ml_str s) {
    ml_jbuf_add(r, b, s.ptr, s.len);
}

void ml_jbuf_char(ml_jrun *r, ml_jbuf *b, uint32_t c) {
    char s[4];
    int n = ml_utf8_put(s, c);
    ml_jbuf_add(r, b, s, (size_t)n);
}

void ml_jbuf_fill(ml_jrun *r, ml_jbuf *b, uint32_t c, int64_t n) {
    if (n > r->max_bytes)
        ml_jrun_take(r, (size_t)n, 4); /* raises */
    for (int64_t i = 0; i < n; i++)
        ml_jbuf_char(r, b, c);
}

void ml_jbuf_printf(ml_jrun *r, ml_jbuf *b, const char *fmt, ...) {
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    reserve(r, b, (size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(b->ptr + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

ml_jval ml_jbuf_value(ml_jrun *r, const ml_jbuf *b) {
    return ml_jstr_view(r, (ml_str){ b->ptr ? b->ptr : "", b->len });
}

ml_jval ml_jbuf_like(ml_jrun *r, ml_jval from, const ml_jbuf *b) {
    return ml_jstr_mark(r, ml_jbuf_value(r, b), from.kind == ML_J_STR && from.s->markup);
}
