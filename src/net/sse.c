#include "net/sse.h"

#include <string.h>

static const char *end_of_line(const char *p, const char *end) {
    const char *lf = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL, *cr;

    end = lf ? lf : end;
    cr = p < end ? memchr(p, '\r', (size_t)(end - p)) : NULL;
    return cr ? cr : end;
}

void ml_sse_write(ml_text *out, ml_str payload) {
    const char *p = payload.ptr, *end = p + payload.len;

    for (;;) {
        const char *stop = end_of_line(p, end);
        ml_text_add(out, "data: ", 6);
        ml_text_add(out, p, (size_t)(stop - p));
        ml_text_add(out, "\n", 1);
        if (stop == end)
            break;
        p = stop + (*stop == '\r' && stop + 1 < end && stop[1] == '\n' ? 2 : 1);
    }
    ml_text_add(out, "\n", 1);
}

static void clear(ml_text *t) {
    t->len = 0;
}

/* Only data fields are used; other fields and comments are skipped. */
static void take_field(ml_sse *s) {
    const char *value = s->line.ptr + 4;
    size_t n = s->line.len;

    if (n < 4 || memcmp(s->line.ptr, "data", 4) != 0 || (n > 4 && *value != ':'))
        return;
    n -= 4;
    if (n > 0) {
        value++;
        n--;
    }
    if (n > 0 && *value == ' ') {
        value++;
        n--;
    }
    ml_text_add(&s->data, value, n);
    ml_text_add(&s->data, "\n", 1);
}

static void end_line(ml_sse *s, void (*fn)(void *ud, ml_str data), void *ud) {
    if (s->line.len > 0)
        take_field(s);
    else if (s->data.len > 0) {
        fn(ud, (ml_str){ s->data.ptr, s->data.len - 1 });
        clear(&s->data);
    }
    clear(&s->line);
}

void ml_sse_push(ml_sse *s, ml_str piece, void (*fn)(void *ud, ml_str data), void *ud) {
    const char *p = piece.ptr, *end = p + piece.len;

    while (p < end) {
        const char *stop = p;
        if (s->skip_lf && *p == '\n') {
            s->skip_lf = false;
            p++;
            continue;
        }
        s->skip_lf = false;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        if (stop > p)
            ml_text_add(&s->line, p, (size_t)(stop - p));
        p = stop;
        if (p < end) {
            s->skip_lf = *p++ == '\r';
            end_line(s, fn, ud);
        }
    }
}

void ml_sse_release(ml_sse *s) {
    ml_text_release(&s->line);
    ml_text_release(&s->data);
    s->skip_lf = false;
}
