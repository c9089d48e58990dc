/* regex_rules.c - regular expressions, in the common subset of Python's and ECMAScript's.
 *
 * Literals, escapes, classes, groups, alternatives, repetitions (lazy ones match the same
 * texts), and the anchors ^ and $ at the ends of the expression or of its alternatives.
 * What a finite automaton does not have (backreferences, lookaround, \b) is refused. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar/grammar_priv.h"

enum { MAX_NESTING = 100, MAX_REPEAT = 1000000, MAX_RANGES = 4096 };

typedef struct ranges {
    ml_grange r[MAX_RANGES];
    int32_t n;
} ranges;

typedef struct reader {
    ml_grules *g;
    ranges *ranges; /* of the class being read */
    const char *begin, *p, *end;
    ml_regex_form form;
    int depth;
    ml_err *err;
    bool failed;
} reader;

__attribute__((format(printf, 2, 3))) static ml_gnode *refuse(reader *r, const char *fmt,
                                                              ...) {
    char what[200];
    va_list ap;

    if (r->failed)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    r->failed = true;
    ml_fail(r->err, ML_EUSAGE, "the regular expression has %s at byte %zu", what,
            (size_t)(r->p - r->begin));
    return NULL;
}

/* --- classes ---------------------------------------------------------------- */

static const ml_grange digits[] = { { '0', '9' } };
static const ml_grange word[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
static const ml_grange space[] = { { '\t', '\r' }, { ' ', ' ' }, { 0xa0, 0xa0 } };
static const ml_grange newline[] = { { '\n', '\n' } };

static void add_range(reader *r, ranges *to, uint32_t lo, uint32_t hi) {
    if (to->n == MAX_RANGES)
        refuse(r, "a class of more than %d ranges", MAX_RANGES);
    else
        to->r[to->n++] = (ml_grange){ lo, hi };
}

static void add_class(reader *r, ranges *to, const ml_gnode *class) {
    for (int32_t i = 0; class && i < class->n_range; i++)
        add_range(r, to, class->range[i].lo, class->range[i].hi);
}

static ml_gnode *named_class(reader *r, char c) {
    switch (c) {
    case 'd': return ml_gnode_class(r->g, digits, 1, false);
    case 'D': return ml_gnode_class(r->g, digits, 1, true);
    case 'w': return ml_gnode_class(r->g, word, 4, false);
    case 'W': return ml_gnode_class(r->g, word, 4, true);
    case 's': return ml_gnode_class(r->g, space, 3, false);
    case 'S': return ml_gnode_class(r->g, space, 3, true);
    default: return NULL;
    }
}

static int hex_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static uint32_t read_hex(reader *r, int n) {
    uint32_t code = 0;

    for (int i = 0; i < n; i++) {
        int digit = r->p < r->end ? hex_of(*r->p) : -1;
        if (digit < 0) {
            refuse(r, "an escape without its %d hexadecimal digits", n);
            return 0;
        }
        code = code << 4 | (uint32_t)digit;
        r->p++;
    }
    return code;
}

/* \u{H...} */
static uint32_t read_braced(reader *r) {
    uint32_t code = 0;

    for (r->p++; r->p < r->end && hex_of(*r->p) >= 0 && code <= 0x10ffff; r->p++)
        code = code << 4 | (uint32_t)hex_of(*r->p);
    if (r->p == r->end || *r->p != '}' || code > 0x10ffff)
        refuse(r, "an invalid \\u{...}");
    else
        r->p++;
    return code;
}

/* The code point of an escape, after the backslash. */
static uint32_t read_escape(reader *r) {
    char c = *r->p++;

    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return read_hex(r, 2);
    case 'u': return r->p < r->end && *r->p == '{' ? read_braced(r) : read_hex(r, 4);
    default: break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
        refuse(r, "\\%c, which is not supported,", c);
    r->p--;
    return ml_utf8_next(&r->p);
}

/* A member of a class: a code point, or a class such as \d that was added (false). */
static bool read_member(reader *r, ranges *to, uint32_t *code) {
    ml_gnode *named;

    if (*r->p != '\\') {
        *code = ml_utf8_next(&r->p);
        return true;
    }
    r->p++;
    if (r->p == r->end) {
        refuse(r, "a backslash at its end");
        return false;
    }
    named = named_class(r, *r->p);
    if (named) {
        r->p++;
        add_class(r, to, named);
        return false;
    }
    if (*r->p == 'b') {
        r->p++;
        *code = '\b';
        return true;
    }
    *code = read_escape(r);
    return true;
}

static ml_gnode *emit_class(reader *r, ml_gnode *class) {
    return r->form.json ? ml_json_class(r->g, class) : class;
}

static ml_gnode *read_class(reader *r) {
    ranges *all = r->ranges ? r->ranges : ML_NEW(r->g->arena, ranges, 1);
    bool negated = r->p < r->end && *r->p == '^', first = true;

    r->ranges = all;
    all->n = 0;
    r->p += negated;
    for (; r->p < r->end && (*r->p != ']' || first) && !r->failed; first = false) {
        uint32_t lo, hi;
        if (!read_member(r, all, &lo))
            continue;
        hi = lo;
        if (r->end - r->p >= 2 && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            if (!read_member(r, all, &hi))
                return refuse(r, "a range that ends with a class");
        }
        if (hi < lo)
            return refuse(r, "a range whose end is before its beginning");
        add_range(r, all, lo, hi);
    }
    if (r->p == r->end)
        return refuse(r, "a [ without its ]");
    r->p++;
    return emit_class(r, ml_gnode_class(r->g, all->r, all->n, negated));
}

/* --- atoms ------------------------------------------------------------------ */

static ml_gnode *read_alternatives(reader *r);

static ml_gnode *read_code(reader *r, uint32_t code) {
    return emit_class(r, ml_gnode_class(r->g, &(ml_grange){ code, code }, 1, false));
}

/* After "(": skips ?:, ?P<name> and ?<name>. */
static void skip_group_head(reader *r) {
    if (r->p == r->end || *r->p != '?')
        return;
    r->p++;
    if (r->p < r->end && *r->p == ':') {
        r->p++;
        return;
    }
    r->p += r->p < r->end && *r->p == 'P';
    if (r->end - r->p < 2 || *r->p != '<' || r->p[1] == '=' || r->p[1] == '!') {
        refuse(r, "a lookaround or a flag, which are not supported,");
        return;
    }
    while (r->p < r->end && *r->p != '>')
        r->p++;
    r->p += r->p < r->end;
}

static ml_gnode *read_group(reader *r) {
    ml_gnode *n;

    if (++r->depth > MAX_NESTING)
        return refuse(r, "more than %d nested groups", MAX_NESTING);
    skip_group_head(r);
    n = r->failed ? NULL : read_alternatives(r);
    if (!r->failed && (r->p == r->end || *r->p != ')'))
        return refuse(r, "a ( without its )");
    r->p++;
    r->depth--;
    return n;
}

static ml_gnode *read_backslash(reader *r) {
    ml_gnode *named;

    if (r->p == r->end)
        return refuse(r, "a backslash at its end");
    named = named_class(r, *r->p);
    if (named) {
        r->p++;
        return emit_class(r, named);
    }
    if (*r->p == 'A' || *r->p == 'Z' || *r->p == 'z')
        return ml_gnode_new(r->g, *r->p++ == 'A' ? ML_GNODE_BEGIN : ML_GNODE_END);
    return read_code(r, read_escape(r));
}

static ml_gnode *read_atom(reader *r) {
    char c = *r->p;

    switch (c) {
    case '(': r->p++; return read_group(r);
    case '[': r->p++; return read_class(r);
    case '.': r->p++; return emit_class(r, ml_gnode_class(r->g, newline, 1, true));
    case '\\': r->p++; return read_backslash(r);
    case '^': r->p++; return ml_gnode_new(r->g, ML_GNODE_BEGIN);
    case '$': r->p++; return ml_gnode_new(r->g, ML_GNODE_END);
    case '*':
    case '+':
    case '?': return refuse(r, "a %c with nothing to repeat", c);
    default: return read_code(r, ml_utf8_next(&r->p));
    }
}

/* --- repetitions ------------------------------------------------------------ */

static bool read_count(reader *r, int32_t *out) {
    const char *p = r->p;
    int64_t n = 0;

    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        n = n > MAX_REPEAT ? n : 10 * n + (*r->p - '0');
    if (n > MAX_REPEAT)
        refuse(r, "a repetition of more than %d times", MAX_REPEAT);
    *out = (int32_t)n;
    return r->p > p;
}

/* {n}, {n,}, {n,m}; anything else is text, as in Python. */
static bool read_braces(reader *r, int32_t *min, int32_t *max) {
    const char *start = r->p++;
    bool ok = read_count(r, min);

    *max = *min;
    if (r->p < r->end && *r->p == ',') {
        r->p++;
        *max = -1;
        if (read_count(r, max))
            ok = true;
        else
            *max = -1;
    }
    if (!ok || r->p == r->end || *r->p != '}') {
        r->p = start;
        return false;
    }
    r->p++;
    if (*max >= 0 && *max < *min)
        refuse(r, "a repetition whose maximum is below its minimum");
    return true;
}

static bool read_quantifier(reader *r, int32_t *min, int32_t *max) {
    char c = r->p < r->end ? *r->p : 0;

    *min = c == '+';
    *max = c == '?' ? 1 : -1;
    if (c == '{')
        return read_braces(r, min, max);
    if (c != '*' && c != '+' && c != '?')
        return false;
    r->p++;
    return true;
}

static ml_gnode *read_repeated(reader *r) {
    ml_gnode *n = read_atom(r);
    int32_t min, max;

    while (!r->failed && read_quantifier(r, &min, &max) && !r->failed) {
        if (n->kind == ML_GNODE_BEGIN || n->kind == ML_GNODE_END)
            return refuse(r, "a repeated anchor");
        n = ml_gnode_repeat(r->g, n, min, max);
        if (r->p < r->end && (*r->p == '?' || *r->p == '+'))
            r->p++;
    }
    return n;
}

static ml_gnode *read_sequence(reader *r) {
    ml_gnode *seq = ml_gnode_new(r->g, ML_GNODE_SEQ);

    while (!r->failed && r->p < r->end && *r->p != '|' && *r->p != ')') {
        ml_gnode *n = *r->p == '{' ? (r->p++, read_code(r, '{')) : read_repeated(r);
        if (n)
            ml_gnode_add(seq, n);
    }
    return seq;
}

static ml_gnode *read_alternatives(reader *r) {
    ml_gnode *alt = ml_gnode_new(r->g, ML_GNODE_ALT);

    ml_gnode_add(alt, read_sequence(r));
    while (!r->failed && r->p < r->end && *r->p == '|') {
        r->p++;
        ml_gnode_add(alt, read_sequence(r));
    }
    return alt;
}

/* --- anchors ---------------------------------------------------------------- */

static bool has_anchor(const ml_gnode *n) {
    if (n->kind == ML_GNODE_BEGIN || n->kind == ML_GNODE_END)
        return true;
    for (const ml_gnode *c = n->child; c; c = c->next)
        if (has_anchor(c))
            return true;
    return false;
}

static ml_gnode *any_text(reader *r) {
    ml_gnode *c = r->form.json ? ml_json_char(r->g) : ml_gnode_class(r->g, NULL, 0, true);
    return ml_gnode_repeat(r->g, c, 0, -1);
}

/* Moves the anchors out of an alternative; the ends without one may continue. */
static ml_gnode *anchored(reader *r, ml_gnode *seq) {
    ml_gnode *out = ml_gnode_new(r->g, ML_GNODE_SEQ), *next;
    bool begin = seq->child && seq->child->kind == ML_GNODE_BEGIN;
    bool end = seq->last && seq->last->kind == ML_GNODE_END;

    if (!begin && r->form.search)
        ml_gnode_add(out, any_text(r));
    for (ml_gnode *c = seq->child; c; c = next) {
        next = c->next;
        if ((c == seq->child && begin) || (c == seq->last && end))
            continue;
        if (has_anchor(c))
            return refuse(r, "an anchor that is not at an end of the expression,");
        c->next = NULL;
        ml_gnode_add(out, c);
    }
    if (!end && r->form.search)
        ml_gnode_add(out, any_text(r));
    return out;
}

ml_status ml_regex_node(ml_grules *g, ml_gnode **out, ml_str text, ml_regex_form form,
                        ml_err *err) {
    reader r = { .g = g,
                 .begin = text.ptr,
                 .p = text.ptr,
                 .end = text.ptr + text.len,
                 .form = form,
                 .err = err };
    ml_gnode *alt, *next;

    *out = ml_gnode_new(g, ML_GNODE_ALT);
    if (ml_utf8_valid(text) != text.len)
        return ml_fail(err, ML_EUSAGE, "the regular expression is not valid UTF-8");
    alt = read_alternatives(&r);
    if (!r.failed && r.p < r.end)
        refuse(&r, "a ) without its (");
    for (ml_gnode *c = r.failed ? NULL : alt->child; c && !r.failed; c = next) {
        ml_gnode *part;
        next = c->next;
        part = anchored(&r, c);
        if (part)
            ml_gnode_add(*out, part);
    }
    return r.failed ? ML_EUSAGE : ML_OK;
}

ml_status ml_regex_rules(ml_grules *g, ml_str text, ml_err *err) {
    ml_gnode *body;
    ml_status st = ml_regex_node(g, &body, text, (ml_regex_form){ 0 }, err);

    ml_grule_set(g, 0, body);
    return st;
}
