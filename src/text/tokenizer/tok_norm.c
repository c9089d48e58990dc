/* Normalizers: rewrite the text before it is split.  By the rules of the reference, each
 * tracks the origin of its characters in the original text. */
#include <stdlib.h>

#include "text/tokenizer/tok_priv.h"

/* --- Unicode forms ---------------------------------------------------------- */

/* A character during decomposition and composition. */
typedef struct part {
    uint32_t c;
    int ccc;
    int change; /* 1: inserted after its predecessor; -k: it replaces k more */
    size_t index;
} part;

typedef struct parts {
    part *at;
    size_t n, cap;
} parts;

static void push_part(parts *p, part x) {
    p->at = ml_tok_grow(p->at, &p->cap, p->n + 1, sizeof *p->at);
    p->at[p->n++] = x;
}

static void decompose(parts *p, const ml_unicode *u, uint32_t c, bool compatible) {
    uint32_t out[ML_DECOMPOSE_MAX];
    int n = ml_char_decompose(u, c, compatible, out);

    for (int i = 0; i < n; i++)
        push_part(p, (part){ out[i], ml_char_ccc(u, out[i]), i > 0, 0 });
}

static int by_class(const void *x, const void *y) {
    const part *a = x, *b = y;

    if (a->ccc != b->ccc)
        return a->ccc < b->ccc ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Sorts the marks between two starters in canonical order; the sort is stable. */
static void order_marks(parts *p) {
    for (size_t begin = 0, end; begin < p->n; begin = end) {
        for (end = begin; end < p->n && p->at[end].ccc; end++)
            p->at[end].index = end;
        if (end - begin > 1)
            qsort(p->at + begin, end - begin, sizeof *p->at, by_class);
        end += end == begin;
    }
}

static void compose(parts *p, const ml_unicode *u) {
    size_t n = 0, starter = SIZE_MAX;
    int last = 0; /* combining class of the characters between the starter and here */

    for (size_t i = 0; i < p->n; i++) {
        part x = p->at[i];
        uint32_t made = 0;
        bool adjacent = starter != SIZE_MAX && starter + 1 == n;
        if (starter != SIZE_MAX && (adjacent || (last < x.ccc && last > 0)))
            made = ml_char_compose(u, p->at[starter].c, x.c);
        if (made) {
            p->at[starter].c = made;
            p->at[starter].change += x.change - 1;
            continue;
        }
        if (x.ccc == 0)
            starter = n;
        last = x.ccc;
        p->at[n++] = x;
    }
    p->n = n;
}

/* Writes the parts that originate from source[begin, ..), one change at a time. */
static void put_parts(ml_edit *out, const parts *p, ml_view v, size_t begin) {
    const char *at = v.ptr + begin; /* the next character of the source */
    const char *const end = v.ptr + v.len;
    ml_span previous = { 0 };

    if (begin > 0 && out->track)
        previous = ml_view_span(v, begin - 1, begin);
    for (size_t i = 0; i < p->n; i++) {
        if (p->at[i].change <= 0 && at < end) {
            size_t from = (size_t)(at - v.ptr);
            ml_span own;
            ml_utf8_next(&at);
            own = ml_view_span(v, from, (size_t)(at - v.ptr));
            ml_edit_put_char(out, p->at[i].c, own);
            for (int k = p->at[i].change; k < 0 && at < end; k++)
                ml_utf8_next(&at);
        } else {
            if (at > v.ptr)
                previous = ml_view_span(v, (size_t)(at - v.ptr) - 1, (size_t)(at - v.ptr));
            ml_edit_put_char(out, p->at[i].c, previous);
        }
    }
}

typedef struct form {
    bool compatible, composed;
} form;

/* True if normalization neither changes c nor composes it with a neighbour. */
static bool is_stable(const ml_unicode *u, form f, uint32_t c) {
    return c < 0x80 || (f.composed && !f.compatible && ml_char_is_nfc_stable(u, c));
}

/* Finds the next range to normalize: from the character before the first unstable one to
 * the next stable one.  False if there is none. */
static bool next_stretch(const ml_unicode *u, form f, ml_view v, size_t *begin,
                         size_t *end) {
    const char *p = v.ptr + *end, *limit = v.ptr + v.len, *before = p;

    for (;;) {
        const char *at = p;
        if (p == limit)
            return false;
        if (!is_stable(u, f, ml_utf8_next(&p)))
            break;
        before = at;
    }
    *begin = (size_t)(before - v.ptr);
    while (p < limit) {
        const char *at = p;
        if (is_stable(u, f, ml_utf8_next(&p))) {
            p = at;
            break;
        }
    }
    *end = (size_t)(p - v.ptr);
    return true;
}

/* True if the parts equal the characters of the source. */
static bool is_unchanged(const parts *p, ml_view v, size_t begin, size_t end) {
    const char *at = v.ptr + begin;

    for (size_t i = 0; i < p->n; i++)
        if (at == v.ptr + end || ml_utf8_next(&at) != p->at[i].c)
            return false;
    return at == v.ptr + end;
}

static bool run_form(const ml_unicode *u, form f, ml_view v, ml_edit *out) {
    size_t begin = 0, end = 0, copied = 0;
    bool changed = false;
    parts p = { 0 };

    while (next_stretch(u, f, v, &begin, &end)) {
        p.n = 0;
        for (const char *at = v.ptr + begin; at < v.ptr + end;)
            decompose(&p, u, ml_utf8_next(&at), f.compatible);
        order_marks(&p);
        if (f.composed)
            compose(&p, u);
        if (is_unchanged(&p, v, begin, end))
            continue;
        ml_edit_copy(out, v, copied, begin);
        put_parts(out, &p, v, begin);
        copied = end;
        changed = true;
    }
    free(p.at);
    if (changed)
        ml_edit_copy(out, v, copied, v.len);
    return changed;
}

/* --- the others ------------------------------------------------------------- */

static ml_status run_replace(ml_encoder *e, const ml_norm *n, ml_view v, ml_edit *out,
                             bool *changed) {
    ml_matches *m = &e->matches[0];
    ml_status st =
        ml_pattern_split(&n->pattern, e->finder, (ml_str){ v.ptr, v.len }, m, e->err);

    for (size_t i = 0; i < m->n && st == ML_OK; i++) {
        ml_span last = { 0 };
        if (!m->at[i].is_match) {
            ml_edit_copy(out, v, m->at[i].begin, m->at[i].end);
            continue;
        }
        *changed = true;
        if (m->at[i].end > 0 && out->track)
            last = ml_view_span(v, m->at[i].end - 1, m->at[i].end);
        ml_edit_put(out, n->content.ptr, n->content.len, last);
    }
    return st;
}

static void run_prepend(const ml_norm *n, ml_view v, ml_edit *out) {
    ml_edit_put(out, n->content.ptr, n->content.len, ml_view_span(v, 0, 1));
    ml_edit_copy(out, v, 0, v.len);
}

static void run_lowercase(ml_view v, ml_edit *out) {
    for (const char *p = v.ptr; p < v.ptr + v.len;) {
        size_t begin = (size_t)(p - v.ptr);
        uint32_t c = ml_utf8_next(&p), lower[2];
        int n = ml_char_lower(c, lower);
        ml_span own = ml_view_span(v, begin, (size_t)(p - v.ptr));
        for (int i = 0; i < n; i++)
            ml_edit_put_char(out, lower[i], own);
    }
}

static void run_strip_accents(const ml_unicode *u, ml_view v, ml_edit *out) {
    for (const char *p = v.ptr; p < v.ptr + v.len;) {
        size_t begin = (size_t)(p - v.ptr);
        if (!ml_char_is_mark(u, ml_utf8_next(&p)))
            ml_edit_copy(out, v, begin, (size_t)(p - v.ptr));
    }
}

static void run_strip(const ml_norm *n, ml_view *v) {
    size_t begin = 0, end = v->len;

    while (n->left && begin < end) {
        const char *p = v->ptr + begin;
        if (!ml_char_is_space(ml_utf8_next(&p)))
            break;
        begin = (size_t)(p - v->ptr);
    }
    while (n->right && end > begin) {
        const char *p = v->ptr + end;
        if (!ml_char_is_space(ml_utf8_prev(&p)))
            break;
        end = (size_t)(p - v->ptr);
    }
    *v = ml_view_sub(*v, begin, end);
}

/* Runs one normalizer; *changed: the result is in `out`, otherwise v is unchanged. */
static ml_status run_one(ml_encoder *e, const ml_norm *n, ml_view *v, ml_edit *out,
                         bool *changed) {
    const ml_unicode *u = &e->tok->unicode;

    *changed = true;
    switch (n->type) {
    case ML_NORM_NFC: *changed = run_form(u, (form){ false, true }, *v, out); break;
    case ML_NORM_NFD: *changed = run_form(u, (form){ false, false }, *v, out); break;
    case ML_NORM_NFKC: *changed = run_form(u, (form){ true, true }, *v, out); break;
    case ML_NORM_NFKD: *changed = run_form(u, (form){ true, false }, *v, out); break;
    case ML_NORM_REPLACE: *changed = false; return run_replace(e, n, *v, out, changed);
    case ML_NORM_PREPEND: run_prepend(n, *v, out); break;
    case ML_NORM_LOWERCASE: run_lowercase(*v, out); break;
    case ML_NORM_STRIP_ACCENTS: run_strip_accents(u, *v, out); break;
    case ML_NORM_STRIP: run_strip(n, v); *changed = false;
    }
    return ML_OK;
}

ml_status ml_norm_run(ml_encoder *e, ml_view *v) {
    int into = 0;

    for (int i = 0; i < e->tok->n_norm; i++) {
        ml_edit *out = &e->norm[into];
        bool changed;
        ml_status st;
        if (v->len == 0)
            break;
        out->text.len = 0;
        out->track = e->track;
        st = run_one(e, &e->tok->norm[i], v, out, &changed);
        if (st != ML_OK)
            return st;
        if (changed) {
            *v = ml_edit_view(out);
            into = 1 - into;
        }
    }
    return ML_OK;
}
