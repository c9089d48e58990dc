/* ebnf_rules.c - EBNF in the syntax of XGrammar, which is that of GBNF with counts.
 *
 *     root ::= "yes" | "no" " " [a-z]+ digit{1,3}   # a comment
 *     digit ::= [0-9]
 *
 * A rule ends where the next one begins. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar/grammar_priv.h"

enum { MAX_NESTING = 100, MAX_RULES = 20000, MAX_REPEAT = 1000000, MAX_RANGES = 4096 };

typedef struct reader {
    ml_grules *g;
    const char *begin, *p, *end;
    ml_map rules;     /* names to numbers */
    ml_grange *range; /* [MAX_RANGES] of the class being read */
    int depth;
    ml_err *err;
    bool failed;
} reader;

__attribute__((format(printf, 2, 3))) static ml_gnode *refuse(reader *r, const char *fmt,
                                                              ...) {
    char what[300];
    int line = 1;
    va_list ap;

    if (r->failed)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    for (const char *p = r->begin; p < r->p; p++)
        line += *p == '\n';
    r->failed = true;
    ml_fail(r->err, ML_EUSAGE, "line %d: %s", line, what);
    return NULL;
}

static void skip_space(reader *r) {
    while (r->p < r->end) {
        if (strchr(" \t\r\n", *r->p)) {
            r->p++;
        } else if (*r->p == '#') {
            while (r->p < r->end && *r->p != '\n')
                r->p++;
        } else {
            return;
        }
    }
}

static bool is_name_char(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '-' || c == '.'));
}

static ml_str read_name(reader *r) {
    const char *p = r->p;
    while (r->p < r->end && is_name_char(*r->p, r->p == p))
        r->p++;
    return (ml_str){ p, (size_t)(r->p - p) };
}

/* Whether a rule's name and ::= follow. */
static bool at_rule(reader *r) {
    const char *p = r->p;
    bool found;

    found = read_name(r).len > 0;
    skip_space(r);
    found = found && r->end - r->p >= 3 && memcmp(r->p, "::=", 3) == 0;
    r->p = p;
    return found;
}

static int32_t rule_of(reader *r, ml_str name) {
    int64_t i = ml_map_get(&r->rules, name, -1);

    if (i >= 0)
        return (int32_t)i;
    if (r->g->n >= MAX_RULES) {
        refuse(r, "there are more than %d rules", MAX_RULES);
        return 0;
    }
    name.ptr = ml_arena_str(r->g->arena, name.ptr, name.len);
    i = ml_grule_new(r->g, name.ptr);
    ml_map_add(&r->rules, name, i);
    return (int32_t)i;
}

/* --- literals --------------------------------------------------------------- */

static uint32_t read_hex(reader *r, int n) {
    uint32_t code = 0;

    for (int i = 0; i < n; i++, r->p++) {
        char c = r->p < r->end ? *r->p : 0;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                         : (c | 32) >= 'a' && (c | 32) <= 'f'
                             ? (uint32_t)((c | 32) - 'a' + 10)
                             : 99;
        if (digit == 99) {
            refuse(r, "an escape lacks its %d hexadecimal digits", n);
            return 0;
        }
        code = code << 4 | digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        refuse(r, "an escape is not a character");
    return code;
}

/* A character, or an escape. */
static uint32_t read_char(reader *r) {
    char c = *r->p;

    if (c != '\\')
        return ml_utf8_next(&r->p);
    if (++r->p == r->end) {
        refuse(r, "the text ends after a backslash");
        return 0;
    }
    c = *r->p++;
    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'a': return '\a';
    case 'e': return 27;
    case '0': return 0;
    case 'x': return read_hex(r, 2);
    case 'u': return read_hex(r, 4);
    case 'U': return read_hex(r, 8);
    default: r->p--; return ml_utf8_next(&r->p);
    }
}

static ml_gnode *read_text(reader *r) {
    ml_text text = { 0 };
    ml_gnode *n;

    while (r->p < r->end && *r->p != '"' && *r->p != '\n' && !r->failed) {
        char utf8[4];
        int len = ml_utf8_put(utf8, read_char(r));
        ml_text_add(&text, utf8, (size_t)len);
    }
    if (r->p == r->end || *r->p != '"')
        refuse(r, "a \" lacks its closing \"");
    else
        r->p++;
    n = ml_gnode_str(r->g, (ml_str){ text.ptr ? text.ptr : "", text.len });
    ml_text_release(&text);
    return n;
}

static ml_gnode *read_class(reader *r) {
    bool negated = r->p < r->end && *r->p == '^';
    int32_t n = 0;

    r->p += negated;
    while (r->p < r->end && *r->p != ']' && *r->p != '\n' && !r->failed) {
        uint32_t lo = read_char(r), hi = lo;
        if (r->end - r->p >= 2 && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            hi = read_char(r);
        }
        if (hi < lo)
            return refuse(r, "a range ends before its beginning");
        if (n == MAX_RANGES)
            return refuse(r, "a class has more than %d ranges", MAX_RANGES);
        r->range[n++] = (ml_grange){ lo, hi };
    }
    if (r->p == r->end || *r->p != ']')
        return refuse(r, "a [ lacks its ]");
    r->p++;
    return ml_gnode_class(r->g, r->range, n, negated);
}

/* --- expressions ------------------------------------------------------------ */

static ml_gnode *read_alternatives(reader *r);

static ml_gnode *read_group(reader *r) {
    ml_gnode *n;

    if (++r->depth > MAX_NESTING)
        return refuse(r, "more than %d groups are nested", MAX_NESTING);
    skip_space(r);
    if (r->p < r->end && *r->p == '=')
        return refuse(r, "lookahead (= ...) is not supported");
    n = read_alternatives(r);
    if (!r->failed && (r->p == r->end || *r->p != ')'))
        return refuse(r, "a ( lacks its )");
    r->p++;
    r->depth--;
    return n;
}

static ml_gnode *read_atom(reader *r) {
    ml_str name;

    switch (*r->p) {
    case '"': r->p++; return read_text(r);
    case '[': r->p++; return read_class(r);
    case '(': r->p++; return read_group(r);
    case '.': r->p++; return ml_gnode_class(r->g, NULL, 0, true);
    default: break;
    }
    name = read_name(r);
    if (!name.len)
        return refuse(r, "expected a text in quotes, a class, a group or a rule's name");
    return ml_gnode_ref(r->g, rule_of(r, name));
}

static bool read_count(reader *r, int32_t *out) {
    int64_t n = 0;
    const char *p;

    skip_space(r);
    for (p = r->p; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        n = n > MAX_REPEAT ? n : 10 * n + (*r->p - '0');
    *out = (int32_t)n;
    if (n > MAX_REPEAT)
        refuse(r, "a repetition has more than %d times", MAX_REPEAT);
    p = r->p > p ? r->p : NULL;
    skip_space(r);
    return p != NULL;
}

static void read_braces(reader *r, int32_t *min, int32_t *max) {
    bool ok = read_count(r, min);

    *max = *min;
    if (r->p < r->end && *r->p == ',') {
        r->p++;
        if (!read_count(r, max))
            *max = -1;
        ok = true;
    }
    if (!ok || r->p == r->end || *r->p != '}' || (*max >= 0 && *max < *min))
        refuse(r, "expected a repetition {n}, {n,} or {n,m} with n at most m");
    r->p++;
}

static ml_gnode *read_repeated(reader *r) {
    ml_gnode *n = read_atom(r);

    for (skip_space(r); !r->failed && r->p < r->end && strchr("*+?{", *r->p);
         skip_space(r)) {
        char c = *r->p++;
        int32_t min = c == '+', max = c == '?' ? 1 : -1;
        if (c == '{')
            read_braces(r, &min, &max);
        n = ml_gnode_repeat(r->g, n, min, max);
    }
    return n;
}

static ml_gnode *read_sequence(reader *r) {
    ml_gnode *seq = ml_gnode_new(r->g, ML_GNODE_SEQ);

    for (skip_space(r); !r->failed && r->p < r->end && !strchr("|)", *r->p) && !at_rule(r);
         skip_space(r)) {
        ml_gnode *n = read_repeated(r);
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

static void read_rule(reader *r) {
    ml_str name = read_name(r);
    int32_t rule;

    skip_space(r);
    if (!name.len || r->end - r->p < 3 || memcmp(r->p, "::=", 3) != 0) {
        refuse(r, "expected a rule: a name, ::= and an expression");
        return;
    }
    r->p += 3;
    rule = rule_of(r, name);
    if (!r->failed && r->g->rule[rule].body) {
        refuse(r, "the rule \"%.*s\" is defined twice",
               (int)(name.len < 100 ? name.len : 100), name.ptr);
        return;
    }
    if (!r->failed) {
        ml_gnode *body = read_alternatives(r);
        ml_grule_set(r->g, rule, body);
    }
}

static void check_defined(reader *r) {
    for (int32_t i = 0; i < r->g->n && !r->failed; i++)
        if (!r->g->rule[i].body)
            refuse(r, "the rule \"%.*s\" is not defined", (int)r->g->rule[i].name.len,
                   r->g->rule[i].name.ptr);
}

ml_status ml_ebnf_rules(ml_grules *g, ml_str text, ml_err *err) {
    reader r = {
        .g = g, .begin = text.ptr, .p = text.ptr, .end = text.ptr + text.len, .err = err
    };

    if (ml_utf8_valid(text) != text.len || memchr(text.ptr, 0, text.len))
        return ml_fail(err, ML_EUSAGE, "the grammar is not valid UTF-8 text");
    r.range = ML_NEW(g->arena, ml_grange, MAX_RANGES);
    ml_map_init(&r.rules, g->arena, 64);
    ml_map_add(&r.rules, ml_str_of("root"), 0);
    for (skip_space(&r); r.p < r.end && !r.failed; skip_space(&r)) {
        read_rule(&r);
        if (!r.failed && r.p < r.end && *r.p == ')')
            refuse(&r, "a ) lacks its (");
    }
    check_defined(&r);
    return r.failed ? ML_EUSAGE : ML_OK;
}
