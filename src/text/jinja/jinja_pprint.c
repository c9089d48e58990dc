/* Formats values in lines of 80 characters: the algorithm of Python's pprint.pformat(). */
#include <string.h>

#include "text/jinja/jinja_wrap.h"

#define WIDTH 80

/* The position of a value, and the width needed after it on its last line. */
typedef struct place {
    int64_t indent, allowance;
    int level; /* 1: the whole value */
} place;

static void format(ml_jrun *r, ml_jbuf *b, ml_jval v, place at);

/* --- dicts in the order of their keys ------------------------------------------------ */

static bool orderable(ml_jval a, ml_jval b) {
    if (ml_jval_is_number(a) && ml_jval_is_number(b))
        return true;
    if (a.kind == ML_J_TUPLE && b.kind == ML_J_TUPLE) {
        for (int64_t i = 0; i < a.seq->n && i < b.seq->n; i++)
            if (!orderable(a.seq->item[i], b.seq->item[i]))
                return false;
        return true;
    }
    return a.kind == ML_J_STR && b.kind == ML_J_STR;
}

/* Keys that cannot be compared are ordered by their type names. */
static bool is_before(ml_jrun *r, ml_jval a, ml_jval b) {
    if (orderable(a, b))
        return ml_jval_cmp(r, a, b, "<") == -1;
    return strcmp(ml_jval_type(a), ml_jval_type(b)) < 0;
}

static void sort_pairs(ml_jrun *r, ml_jpair *p, ml_jpair *scratch, int64_t n) {
    int64_t half = n / 2, i = 0, k = half;

    if (n < 2)
        return;
    sort_pairs(r, p, scratch, half);
    sort_pairs(r, p + half, scratch, n - half);
    for (int64_t out = 0; out < n; out++) {
        bool right = i >= half || (k < n && is_before(r, p[k].key, p[i].key));
        scratch[out] = right ? p[k++] : p[i++];
    }
    memcpy(p, scratch, (size_t)n * sizeof *p);
}

static const ml_jpair *in_order(ml_jrun *r, const ml_jdict *d) {
    ml_jpair *p = ML_JNEW(r, ml_jpair, d->n + 1);

    if (d->n)
        memcpy(p, d->pair, (size_t)d->n * sizeof *p);
    sort_pairs(r, p, ML_JNEW(r, ml_jpair, d->n + 1), d->n);
    return p;
}

/* --- on one line ----------------------------------------------------------------------- */

static void write_flat(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    bool tuple = v.kind == ML_J_TUPLE;
    const ml_jpair *p;

    ml_jrun_enter(r);
    if (v.kind == ML_J_DICT) {
        p = in_order(r, v.dict);
        for (int64_t i = 0; i < v.dict->n; i++) {
            ml_jbuf_str(r, b, ml_str_of(i ? ", " : "{"));
            write_flat(r, b, p[i].key);
            ml_jbuf_str(r, b, ml_str_of(": "));
            write_flat(r, b, p[i].value);
        }
        ml_jbuf_str(r, b, ml_str_of(v.dict->n ? "}" : "{}"));
    } else if (tuple || v.kind == ML_J_LIST) {
        ml_jbuf_str(r, b, ml_str_of(tuple ? "(" : "["));
        for (int64_t i = 0; i < v.seq->n; i++) {
            ml_jbuf_str(r, b, ml_str_of(i ? ", " : ""));
            write_flat(r, b, v.seq->item[i]);
        }
        ml_jbuf_str(r, b, ml_str_of(!tuple ? "]" : v.seq->n == 1 ? ",)" : ")"));
    } else {
        ml_jval_repr(r, b, v);
    }
    ml_jrun_leave(r);
}

static ml_str flat(ml_jrun *r, ml_jval v) {
    ml_jbuf b = { 0 };

    write_flat(r, &b, v);
    return (ml_str){ b.ptr, b.len };
}

/* --- on several -------------------------------------------------------------------------- */

static void new_line(ml_jrun *r, ml_jbuf *b, int64_t indent) {
    ml_jbuf_str(r, b, ml_str_of("\n"));
    ml_jbuf_fill(r, b, ' ', indent);
}

static void format_dict(ml_jrun *r, ml_jbuf *b, const ml_jdict *d, place at) {
    const ml_jpair *p = in_order(r, d);

    at.indent++;
    ml_jbuf_str(r, b, ml_str_of("{"));
    for (int64_t i = 0; i < d->n; i++) {
        ml_str key = flat(r, p[i].key);
        place inner = { at.indent + ml_jstr_count_chars(key) + 2,
                        i + 1 == d->n ? at.allowance + 1 : 1, at.level + 1 };
        ml_jbuf_str(r, b, key);
        ml_jbuf_str(r, b, ml_str_of(": "));
        format(r, b, p[i].value, inner);
        if (i + 1 < d->n) {
            ml_jbuf_str(r, b, ml_str_of(","));
            new_line(r, b, at.indent);
        }
    }
    ml_jbuf_str(r, b, ml_str_of("}"));
}

static void format_items(ml_jrun *r, ml_jbuf *b, ml_jval v, place at) {
    const char *end = v.kind == ML_J_LIST ? "]" : v.seq->n == 1 ? ",)" : ")";

    at.indent++;
    ml_jbuf_str(r, b, ml_str_of(v.kind == ML_J_LIST ? "[" : "("));
    for (int64_t i = 0; i < v.seq->n; i++) {
        bool last = i + 1 == v.seq->n;
        place inner = { at.indent, last ? at.allowance + (int64_t)strlen(end) : 1,
                        at.level + 1 };
        format(r, b, v.seq->item[i], inner);
        if (!last) {
            ml_jbuf_str(r, b, ml_str_of(","));
            new_line(r, b, at.indent);
        }
    }
    ml_jbuf_str(r, b, ml_str_of(end));
}

/* Pieces of a string, each with its own quotes. */
typedef struct pieces {
    ml_jrun *r;
    ml_jitems list; /* the pieces as written */
} pieces;

static ml_jval quoted(ml_jrun *r, ml_str s) {
    ml_jbuf b = { 0 };

    ml_jval_repr(r, &b, ml_jstr_view(r, s));
    return ml_jbuf_value(r, &b);
}

/* A word and the blanks after it. */
static const char *part_end(const char *p, const char *end) {
    bool blank = false;

    while (p < end) {
        const char *q = p;
        bool is = ml_jchar_is_space(ml_utf8_next(&q));
        if (blank && !is)
            break;
        blank = is;
        p = q;
    }
    return p;
}

/* Divides a line that is too long by words; `less`: the last piece has this much less
 * space. */
static void break_line(pieces *x, ml_str line, int64_t room, int64_t less) {
    const char *p = line.ptr, *end = p + line.len, *begin = p;

    while (p < end) {
        const char *next = part_end(p, end);
        int64_t own = next == end ? room - less : room;
        ml_jval with = quoted(x->r, (ml_str){ begin, (size_t)(next - begin) });
        ml_jrun_step(x->r, (int64_t)(next - begin) / 8);
        if (with.s->n_char > own && p > begin) {
            ml_jitems_add(x->r, &x->list,
                          quoted(x->r, (ml_str){ begin, (size_t)(p - begin) }));
            begin = p;
        }
        p = next;
    }
    if (begin < end)
        ml_jitems_add(x->r, &x->list,
                      quoted(x->r, (ml_str){ begin, (size_t)(end - begin) }));
}

static void format_str(ml_jrun *r, ml_jbuf *b, ml_jval v, place at) {
    const char *p = v.s->ptr, *end = p + v.s->len, *next;
    bool whole = at.level == 1;
    pieces x = { .r = r };

    at.indent += whole;
    at.allowance += whole;
    for (; p < end; p = next) {
        int64_t room = WIDTH - at.indent, less;
        ml_str line;
        ml_jval own;
        ml_jline_end(p, end, &next);
        line = (ml_str){ p, (size_t)(next - p) };
        less = next == end ? at.allowance : 0;
        own = quoted(r, line);
        if (own.s->n_char <= room - less)
            ml_jitems_add(r, &x.list, own);
        else
            break_line(&x, line, room, less);
    }
    if (x.list.n == 1) {
        ml_jval_repr(r, b, v);
        return;
    }
    ml_jbuf_str(r, b, ml_str_of(whole ? "(" : ""));
    for (int64_t i = 0; i < x.list.n; i++) {
        if (i)
            new_line(r, b, at.indent);
        ml_jbuf_str(r, b, ml_jstr_get(x.list.item[i]));
    }
    ml_jbuf_str(r, b, ml_str_of(whole ? ")" : ""));
}

static void format(ml_jrun *r, ml_jbuf *b, ml_jval v, place at) {
    ml_str text = flat(r, v);
    bool fits = ml_jstr_count_chars(text) <= WIDTH - at.indent - at.allowance;

    ml_jrun_enter(r);
    if (!fits && v.kind == ML_J_DICT)
        format_dict(r, b, v.dict, at);
    else if (!fits && (v.kind == ML_J_LIST || v.kind == ML_J_TUPLE))
        format_items(r, b, v, at);
    else if (!fits && v.kind == ML_J_STR && v.s->len && !v.s->markup)
        format_str(r, b, v, at);
    else
        ml_jbuf_str(r, b, text);
    ml_jrun_leave(r);
}

void ml_jval_pprint(ml_jrun *r, ml_jbuf *b, ml_jval v) {
    format(r, b, v, (place){ 0, 0, 1 });
}
