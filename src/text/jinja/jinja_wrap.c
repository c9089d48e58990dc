/* Wraps lines: the algorithm of Python's textwrap, which keeps tabs and blanks. */
#include "text/jinja/jinja_wrap.h"

typedef struct letters {
    const uint32_t *c;     /* [n] */
    const int64_t *dashes; /* [n] the number of consecutive '-' from here on */
    int64_t n;
} letters;

typedef struct chunk {
    int64_t begin, end;
} chunk;

/* The line being composed. */
typedef struct wrapper {
    ml_jrun *r;
    ml_jbuf *b;
    letters s;
    const ml_jwrap *how;
    bool any; /* a line has been written */
} wrapper;

/* --- classes of characters ------------------------------------------------------ */

static uint32_t at(const letters *s, int64_t i) {
    return i >= 0 && i < s->n ? s->c[i] : 0;
}

static bool is_blank(uint32_t c) { /* the whitespace of textwrap, narrower than isspace() */
    return c == ' ' || (c >= 0x09 && c <= 0x0d);
}

static bool is_word(const letters *s, int64_t i) {
    uint32_t c = at(s, i);
    return c == '_' || ml_jchar_is(c, ML_J_ALPHA) || ml_jchar_is(c, ML_J_NUMERIC);
}

static bool is_letter(const letters *s, int64_t i) {
    return is_word(s, i) && !ml_jchar_is(at(s, i), ML_J_DECIMAL);
}

static bool is_word_or_mark(const letters *s, int64_t i) {
    uint32_t c = at(s, i);
    return is_word(s, i) || c == '!' || c == '"' || c == '\'' || c == '&' || c == '.' ||
           c == ',' || c == '?';
}

/* --- chunks: blanks, words, parts of hyphenated words, dashes --------------------- */

/* Two dashes or more between words. */
static bool is_dash(const letters *s, int64_t i) {
    return i < s->n && s->dashes[i] >= 2 && is_word_or_mark(s, i - 1) &&
           is_word(s, i + s->dashes[i]);
}

/* True if a word may be broken after the hyphen at i. */
static bool breaks_after(const letters *s, int64_t i) {
    bool before = is_letter(s, i - 1) &&
                  (is_letter(s, i - 2) || (at(s, i - 2) == '-' && is_letter(s, i - 3)));

    return at(s, i) == '-' && before && is_letter(s, i + 1) &&
           (is_letter(s, i + 2) || (at(s, i + 2) == '-' && is_letter(s, i + 3)));
}

static int64_t chunk_end(const letters *s, int64_t i, bool hyphens) {
    bool blank = is_blank(s->c[i]);

    if (blank || !hyphens) {
        while (i < s->n && is_blank(s->c[i]) == blank)
            i++;
        return i;
    }
    if (is_dash(s, i))
        return i + s->dashes[i];
    for (i++; i < s->n && !is_blank(s->c[i]); i++) {
        if (breaks_after(s, i))
            return i + 1;
        if (is_dash(s, i))
            return i;
    }
    return i;
}

static bool all_space(const letters *s, chunk k) {
    for (int64_t i = k.begin; i < k.end; i++)
        if (!ml_jchar_is_space(s->c[i]))
            return false;
    return true;
}

/* --- lines ------------------------------------------------------------------------- */

/* The length of the part of a long word that fits in the rest of the line. */
static int64_t cut_at(const wrapper *w, chunk k, int64_t room) {
    int64_t end = k.begin + room, i = end;

    if (!w->how->hyphens || k.end - k.begin <= room)
        return end < k.end ? end : k.end;
    while (--i > k.begin && w->s.c[i] != '-')
        continue;
    if (i <= k.begin)
        return end;
    for (int64_t j = k.begin; j < i; j++)
        if (w->s.c[j] != '-')
            return i + 1;
    return end;
}

static void put_line(wrapper *w, chunk line) {
    if (line.begin == line.end)
        return;
    if (w->any)
        ml_jbuf_str(w->r, w->b, w->how->newline);
    for (int64_t i = line.begin; i < line.end; i++)
        ml_jbuf_char(w->r, w->b, w->s.c[i]);
    w->any = true;
}

static void go_on(const wrapper *w, chunk *k, int64_t from) {
    k->begin = k->end = from;
    if (from < w->s.n)
        k->end = chunk_end(&w->s, from, w->how->hyphens);
}

/* Composes one line that begins with the chunk `next`, which becomes the first of the next
 * line. */
static void wrap_one(wrapper *w, chunk *next) {
    const letters *s = &w->s;
    int64_t width = w->how->width;
    chunk line = { next->begin, next->begin }, last = line;

    while (next->begin < s->n && next->end - line.begin <= width) {
        last = *next;
        line.end = next->end;
        go_on(w, next, next->end);
    }
    if (next->begin < s->n && next->end - next->begin > width) {
        if (w->how->cut) {
            last =
                (chunk){ next->begin, cut_at(w, *next, width - (line.end - line.begin)) };
            next->begin = line.end = last.end;
        } else if (line.begin == line.end) {
            last = *next;
            line.end = next->end;
            go_on(w, next, next->end);
        }
    }
    if (all_space(s, last))
        line.end = last.begin;
    put_line(w, line);
}

void ml_jbuf_wrap(ml_jrun *r, ml_jbuf *b, ml_str line, const ml_jwrap *how) {
    int64_t n = ml_jstr_count_chars(line), i = 0;
    uint32_t *c = ML_JNEW(r, uint32_t, n + 1);
    int64_t *dashes = ML_JNEW(r, int64_t, n + 1);
    wrapper w = { r, b, { c, dashes, n }, how, false };
    chunk next = { 0, 0 };

    if (how->width <= 0)
        ml_jraise(r, "ValueError", "invalid width %lld (must be > 0)",
                  (long long)how->width);
    for (const char *p = line.ptr; i < n; i++)
        c[i] = ml_utf8_next(&p);
    while (--i >= 0)
        dashes[i] = c[i] == '-' ? 1 + (i + 1 < n ? dashes[i + 1] : 0) : 0;
    go_on(&w, &next, 0);
    while (next.begin < n) {
        ml_jrun_step(r, 1);
        if (w.any && all_space(&w.s, next))
            go_on(&w, &next, next.end);
        wrap_one(&w, &next);
    }
}
