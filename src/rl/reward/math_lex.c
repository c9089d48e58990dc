#include "rl/reward/math_lex.h"

#include <string.h>

#include "base/bug.h"
#include "rl/reward/math_macros.h"
#include "rl/reward/math_plain.h"
#include "text/unicode.h"

typedef struct lexer {
    ml_arena *arena;
    const char *p, *end;
    ml_mtok *tok; /* [cap] */
    int32_t n, cap;
    int32_t brackets;  /* ( [ and \{ that are open: commas there separate */
    int32_t text_from; /* the depth of braces from which on it is text; 0: it is not */
    int32_t depth;
    uint8_t *hidden; /* [depth]: braces that only hold a font's argument */
    bool spaced;
} lexer;

bool ml_mtok_is(const ml_mtok *t, ml_mtok_kind kind, const char *text) {
    return t->kind == kind && ml_str_is(t->text, text);
}

bool ml_mtok_op(const ml_mtok *t, const char *text) {
    return ml_mtok_is(t, ML_T_OP, text);
}

int ml_mtok_nests(const ml_mtok *t) {
    if (t->kind == ML_T_OPEN || t->kind == ML_T_GROUP)
        return 1;
    return t->kind == ML_T_CLOSE || t->kind == ML_T_UNGROUP ? -1 : 0;
}

static ml_mtok *push(lexer *x, ml_mtok_kind kind, ml_str text) {
    ml_mtok *t;

    ML_BUG_IF(x->n == x->cap); /* a token is at least a byte */
    t = &x->tok[x->n++];
    *t = (ml_mtok){
        .kind = kind, .text = text, .spaced = x->spaced, .in_text = x->text_from != 0
    };
    x->spaced = false;
    if (kind == ML_T_OPEN)
        x->brackets++;
    else if (kind == ML_T_CLOSE && x->brackets > 0)
        x->brackets--;
    return t;
}

static void push_op(lexer *x, const char *text) {
    push(x, ML_T_OP, ml_str_of(text));
}

static bool is_digit(const char *p, const char *end) {
    return p < end && *p >= '0' && *p <= '9';
}

static bool is_letter(const char *p, const char *end) {
    return p < end && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z'));
}

static bool begins(const lexer *x, const char *what) {
    size_t n = strlen(what);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, what, n) == 0;
}

/* --- numbers ------------------------------------------------------------------------- */

/* How many bytes of a thousands separator stand at p; 0: none.  Inside brackets a plain
 * comma separates elements. */
static size_t separator(const lexer *x, const char *p) {
    static const char *const marks[] = {
        ",\\!", "{,}", "\\,", "\\ ", "\\;", "~", " ", ","
    };

    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        size_t n = strlen(marks[i]);
        if ((size_t)(x->end - p) > n && memcmp(p, marks[i], n) == 0)
            return strcmp(marks[i], ",") == 0 && x->brackets > 0 ? 0 : n;
    }
    return 0;
}

/* Exactly three digits at p. */
static bool three_digits(const char *p, const char *end) {
    return is_digit(p, end) && is_digit(p + 1, end) && is_digit(p + 2, end) &&
           !is_digit(p + 3, end);
}

static void add_exponent(lexer *x, ml_text *t) {
    const char *q = x->p;

    if (q >= x->end || (*q != 'e' && *q != 'E'))
        return;
    q++;
    if (q < x->end && (*q == '+' || *q == '-'))
        q++;
    if (!is_digit(q, x->end))
        return;
    while (is_digit(q, x->end))
        q++;
    ml_text_add(t, x->p, (size_t)(q - x->p));
    x->p = q;
}

static void add_digits(lexer *x, ml_text *t) {
    const char *from = x->p;

    while (is_digit(x->p, x->end))
        x->p++;
    ml_text_add(t, from, (size_t)(x->p - from));
}

/* How many digits LaTeX would take here as the argument of a macro: \frac12 is a half.  0:
 * this is no argument.  \frac102 can only be meant as ten halves. */
static size_t argument_digits(const lexer *x) {
    const ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;
    size_t run = 0;

    if (!last || !is_digit(x->p, x->end))
        return 0;
    while (is_digit(x->p + run, x->end))
        run++;
    if (ml_mtok_is(last, ML_T_MACRO, "frac"))
        return run > 2 && x->p[1] == '0' ? run - 1 : 1;
    if (x->n >= 2 && ml_mtok_is(last - 1, ML_T_MACRO, "frac") && last->kind == ML_T_NUM)
        return 1;
    return ml_mtok_is(last, ML_T_MACRO, "sqrt") ? 1 : 0;
}

static void add_groups(lexer *x, ml_text *t) {
    size_t n;

    add_digits(x, t);
    if (t->len < 1 || t->len > 3)
        return;
    while ((n = separator(x, x->p)) > 0 && three_digits(x->p + n, x->end)) {
        x->p += n;
        add_digits(x, t);
    }
}

static void read_number(lexer *x) {
    size_t argument = argument_digits(x);
    ml_text t = { 0 };

    ml_text_add(&t, x->p, argument);
    x->p += argument;
    if (argument == 0) {
        add_groups(x, &t);
        if (x->p < x->end && *x->p == '.' && (t.len || is_digit(x->p + 1, x->end))) {
            ml_text_add(&t, x->p++, 1);
            add_digits(x, &t);
        }
        add_exponent(x, &t);
    }
    push(x, ML_T_NUM, (ml_str){ ml_arena_str(x->arena, t.ptr, t.len), t.len });
    ml_text_release(&t);
}

/* "million" after a number becomes its exponent. */
static bool read_magnitude(lexer *x, ml_str word) {
    static const struct {
        const char *word, *exponent;
    } rows[] = { { "million", "e6" }, { "billion", "e9" }, { "trillion", "e12" } };
    ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;

    if (!last || last->kind != ML_T_NUM || memchr(last->text.ptr, 'e', last->text.len))
        return false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(word, rows[i].word)) {
            char *text = ml_arena_printf(x->arena, "%.*s%s", (int)last->text.len,
                                         last->text.ptr, rows[i].exponent);
            last->text = ml_str_of(text);
            last->magnitude = true;
            return true;
        }
    return false;
}

/* --- words ----------------------------------------------------------------------------- */

static ml_str lowered(lexer *x, const char *from, size_t n) {
    char *s = ml_arena_str(x->arena, from, n);

    for (size_t i = 0; i < n; i++)
        if (s[i] >= 'A' && s[i] <= 'Z')
            s[i] = (char)(s[i] + 'a' - 'A');
    return (ml_str){ s, n };
}

/* The base of a numeral, in words: 2041_{\\text{eight}}. */
static bool read_base(lexer *x, ml_str word) {
    static const char *const names[] = { "two", "three",  "four",   "five",
                                         "six", "seven",  "eight",  "nine",
                                         "ten", "eleven", "twelve", "sixteen" };
    static const char *const digits[] = { "2", "3", "4",  "5",  "6",  "7",
                                          "8", "9", "10", "11", "12", "16" };
    int32_t at = x->n - (x->n && x->tok[x->n - 1].kind == ML_T_GROUP);

    if (at < 1 || !ml_mtok_op(&x->tok[at - 1], "_"))
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ml_str_is(word, names[i])) {
            push(x, ML_T_NUM, ml_str_of(digits[i]));
            return true;
        }
    return false;
}

static void read_word(lexer *x) {
    const char *from = x->p;
    ml_str word;

    while (is_letter(x->p, x->end))
        x->p++;
    word = lowered(x, from, (size_t)(x->p - from));
    if (read_magnitude(x, word) || read_base(x, word))
        return;
    if (ml_str_is(word, "and") || ml_str_is(word, "or"))
        push_op(x, word.ptr);
    else if (ml_str_is(word, "inf") || ml_str_is(word, "infinity"))
        push(x, ML_T_MACRO, ml_str_of("infty"));
    else
        push(x, ML_T_WORD, word)->capitals = memcmp(word.ptr, from, word.len) != 0;
}

/* --- macros ------------------------------------------------------------------------------ */

static void skip_blanks(lexer *x) {
    while (x->p < x->end && (*x->p == ' ' || *x->p == '\n' || *x->p == '\t'))
        x->p++;
}

/* The bytes of a braced argument at p without its braces, or nothing. */
static bool peek_argument(const lexer *x, ml_str *out) {
    const char *p = x->p;
    int depth = 0;

    if (p >= x->end || *p != '{')
        return false;
    for (; p < x->end; p++) {
        if (*p == '\\' && p + 1 < x->end)
            p++;
        else if (*p == '{')
            depth++;
        else if (*p == '}' && --depth == 0) {
            *out = (ml_str){ x->p + 1, (size_t)(p - x->p - 1) };
            return true;
        }
    }
    return false;
}

static void open_hidden(lexer *x, bool text) {
    if (x->p >= x->end || *x->p != '{')
        return;
    x->p++;
    x->hidden[x->depth++] = 1;
    if (text && x->text_from == 0)
        x->text_from = x->depth;
}

static bool all_of(ml_str s, bool (*is)(const char *, const char *)) {
    for (size_t i = 0; i < s.len; i++)
        if (!is(s.ptr + i, s.ptr + s.len))
            return false;
    return s.len > 0;
}

/* A line over digits after a decimal point says that they repeat; over plain letters or
 * digits it says nothing that matters. */
static bool read_overline(lexer *x) {
    ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;
    ml_str inside;

    skip_blanks(x);
    if (!peek_argument(x, &inside))
        return false;
    if (all_of(inside, is_digit) && last && last->kind == ML_T_NUM && !last->repeat.len &&
        memchr(last->text.ptr, '.', last->text.len)) {
        last->repeat = inside;
        x->p += inside.len + 2;
        return true;
    }
    if (!all_of(inside, is_digit) && !all_of(inside, is_letter))
        return false;
    open_hidden(x, false);
    return true;
}

/* \begin{pmatrix} and its end are brackets with rows inside. */
static void read_environment(lexer *x, bool begin) {
    ml_str name;

    if (!peek_argument(x, &name)) {
        push(x, ML_T_OTHER, ml_str_of(begin ? "begin" : "end"));
        return;
    }
    x->p += name.len + 2;
    if (name.len > 6 && memcmp(name.ptr + name.len - 6, "matrix", 6) == 0 &&
        (name.ptr[0] == 'p' || name.ptr[0] == 'b'))
        push(x, begin ? ML_T_OPEN : ML_T_CLOSE, ml_str_of("matrix"));
    else
        push(x, begin ? ML_T_OPEN : ML_T_CLOSE, name);
}

static void do_macro(lexer *x, const ml_macro *row) {
    ml_str inside;

    switch (row->sense) {
    case ML_MACRO_NOTHING:
        if (strcmp(row->name, "right") == 0 && x->p < x->end && *x->p == '.')
            x->p++;
        break;
    case ML_MACRO_SPACE: x->spaced = true; break;
    case ML_MACRO_FONT:
    case ML_MACRO_TEXT:
        skip_blanks(x);
        open_hidden(x, row->sense == ML_MACRO_TEXT);
        break;
    case ML_MACRO_ARGUMENT:
        if (peek_argument(x, &inside))
            x->p += inside.len + 2;
        break;
    case ML_MACRO_OP: push_op(x, row->is); break;
    case ML_MACRO_OPEN: push(x, ML_T_OPEN, ml_str_of(row->is)); break;
    case ML_MACRO_CLOSE: push(x, ML_T_CLOSE, ml_str_of(row->is)); break;
    case ML_MACRO_RENAME: push(x, ML_T_MACRO, ml_str_of(row->is)); break;
    case ML_MACRO_WORD: push(x, ML_T_WORD, ml_str_of(row->is)); break;
    }
}

static void read_macro(lexer *x) {
    const char *from = ++x->p;
    const ml_macro *row;
    ml_str name;

    while (is_letter(x->p, x->end))
        x->p++;
    name = (ml_str){ from, (size_t)(x->p - from) };
    if (name.len == 0 && x->p < x->end) {
        row = ml_macro_sign(*x->p);
        if (row) {
            x->p++;
            do_macro(x, row);
            return;
        }
    }
    row = ml_macro_find(name);
    if (row)
        do_macro(x, row);
    else if (ml_str_is(name, "begin") || ml_str_is(name, "end"))
        read_environment(x, ml_str_is(name, "begin"));
    else if (ml_str_is(name, "overline") && read_overline(x))
        return;
    else
        push(x, name.len ? ML_T_MACRO : ML_T_OTHER, name.len ? name : ml_str_of("\\"));
}

/* --- everything else ------------------------------------------------------------------------ */

static void read_brace(lexer *x) {
    if (*x->p++ == '{') {
        x->hidden[x->depth++] = 0;
        push(x, ML_T_GROUP, ml_str_of("{"));
    } else if (x->depth == 0)
        push(x, ML_T_UNGROUP, ml_str_of("}"));
    else {
        if (x->text_from == x->depth)
            x->text_from = 0;
        if (!x->hidden[--x->depth])
            push(x, ML_T_UNGROUP, ml_str_of("}"));
    }
}

static void read_sign(lexer *x) {
    static const struct {
        const char *source, *op;
    } rows[] = { { "**", "^" }, { "<=", "<=" }, { ">=", ">=" }, { "!=", "!=" },
                 { "+", "+" },  { "-", "-" },   { "*", "*" },   { "/", "/" },
                 { "^", "^" },  { "_", "_" },   { "!", "!" },   { "|", "|" },
                 { "=", "=" },  { "<", "<" },   { ">", ">" },   { ",", "," },
                 { ":", ":" },  { "%", "%" },   { "&", "&" } };

    if (begins(x, "//")) { /* Python's, which no answer means */
        push(x, ML_T_OTHER, (ml_str){ x->p, 2 });
        x->p += 2;
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (begins(x, rows[i].source)) {
            x->p += strlen(rows[i].source);
            push_op(x, rows[i].op);
            return;
        }
    push(x, ML_T_OTHER, (ml_str){ x->p++, 1 });
}

static void read_ascii(lexer *x) {
    char c = *x->p;

    if (is_digit(x->p, x->end) ||
        (c == '.' && is_digit(x->p + 1, x->end) &&
         (x->spaced || !x->n || x->tok[x->n - 1].kind != ML_T_NUM)))
        read_number(x);
    else if (is_letter(x->p, x->end))
        read_word(x);
    else if (c == '\\')
        read_macro(x);
    else if (c == '{' || c == '}')
        read_brace(x);
    else if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '~') {
        x->spaced = true;
        x->p++;
    } else if (c == '$')
        x->p++;
    else if (c == '(' || c == '[')
        push(x, ML_T_OPEN, (ml_str){ x->p++, 1 });
    else if (c == ')' || c == ']')
        push(x, ML_T_CLOSE, (ml_str){ x->p++, 1 });
    else
        read_sign(x);
}

/* A degree sign is written ^\circ, ^{\circ} or ^o: one token for all. */
static void join_degrees(ml_mtoks *all, ml_mtok *t) {
    int32_t kept = 0;

    for (int32_t i = 0; i < all->n; i++) {
        bool raised = ml_mtok_op(&t[i], "^"), group = false;
        int32_t at = i + 1;
        if (raised && at < all->n && t[at].kind == ML_T_GROUP) {
            group = true;
            at++;
        }
        if (raised && at < all->n &&
            (ml_mtok_op(&t[at], "deg") || ml_mtok_is(&t[at], ML_T_WORD, "o")) &&
            (!group || (at + 1 < all->n && t[at + 1].kind == ML_T_UNGROUP))) {
            t[kept++] = (ml_mtok){ .kind = ML_T_OP, .text = ml_str_of("deg") };
            i = at + group;
        } else
            t[kept++] = t[i];
    }
    all->n = kept;
}

/* <1,2,3> is a vector. */
static void join_angles(ml_mtoks *all, ml_mtok *t) {
    bool comma = false;

    if (all->n < 3 || !ml_mtok_op(&t[0], "<") || !ml_mtok_op(&t[all->n - 1], ">"))
        return;
    for (int32_t i = 1; i < all->n - 1; i++)
        comma = comma || ml_mtok_op(&t[i], ",");
    if (!comma)
        return;
    t[0].kind = ML_T_OPEN;
    t[all->n - 1].kind = ML_T_CLOSE;
}

bool ml_math_lex(ml_mtoks *out, ml_arena *a, ml_str src) {
    lexer x = { .arena = a };
    ml_text plain = { 0 };

    *out = (ml_mtoks){ 0 };
    if (src.len > ML_MATH_BYTES)
        return false;
    ml_math_plain(&plain, src);
    if (plain.len > ML_MATH_BYTES) {
        ml_text_release(&plain);
        return false;
    }
    x.p = ml_arena_str(a, plain.ptr, plain.len);
    x.end = x.p + plain.len;
    ml_text_release(&plain);
    x.tok = ML_NEW(a, ml_mtok, (size_t)(x.end - x.p) + 1);
    x.cap = (int32_t)(x.end - x.p) + 1;
    x.hidden = ML_NEW(a, uint8_t, (size_t)(x.end - x.p) + 1);
    while (x.p < x.end) {
        if ((unsigned char)*x.p < 0x80)
            read_ascii(&x);
        else {
            const char *from = x.p;
            ml_utf8_next(&x.p);
            push(&x, ML_T_OTHER, (ml_str){ from, (size_t)(x.p - from) });
        }
    }
    *out = (ml_mtoks){ x.tok, x.n };
    join_degrees(out, x.tok);
    join_angles(out, x.tok);
    return true;
}
