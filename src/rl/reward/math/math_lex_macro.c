/* LaTeX macros and environments. */
#include "rl/reward/math/math_lexer.h"

#include <string.h>

#include "rl/reward/math/math_macros.h"

void ml_lexer_skip_blanks(ml_lexer *x) {
    while (x->p < x->end && (*x->p == ' ' || *x->p == '\n' || *x->p == '\t'))
        x->p++;
}

/* The contents of a braced argument at p, without the braces, or nothing. */
bool ml_lexer_peek_argument(const ml_lexer *x, ml_str *out) {
    const char *p = x->p;
    int depth = 0;

    if (p >= x->end || *p != '{')
        return false;
    /* Many braces that are never closed must not be scanned to the end one by one. */
    if (!memchr(p, '}', (size_t)(x->end - p)))
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

static void open_hidden(ml_lexer *x, bool text) {
    if (x->p >= x->end || *x->p != '{')
        return;
    x->p++;
    x->hidden[x->depth++] = 1;
    if (text && x->text_from == 0)
        x->text_from = x->depth;
}

bool ml_all_of(ml_str s, bool (*is)(const char *, const char *)) {
    for (size_t i = 0; i < s.len; i++)
        if (!is(s.ptr + i, s.ptr + s.len))
            return false;
    return s.len > 0;
}

/* A line over several plain letters or digits does not change the meaning. */
static bool read_overline(ml_lexer *x) {
    ml_str inside;

    if (ml_lexer_repeating(x))
        return true;
    ml_lexer_skip_blanks(x);
    if (!ml_lexer_peek_argument(x, &inside) ||
        (!ml_all_of(inside, ml_is_digit_at) &&
         (inside.len < 2 || !ml_all_of(inside, ml_is_letter_at))))
        return false;
    open_hidden(x, false);
    return true;
}

static bool ends_with(ml_str s, const char *end) {
    size_t n = strlen(end);
    return s.len >= n && memcmp(s.ptr + s.len - n, end, n) == 0;
}

/* All matrices in round or square brackets, or in none, have the same name; the others are
 * named by their first letter. */
static ml_str matrix_name(ml_str name) {
    if (name.len && name.ptr[name.len - 1] == '*')
        name.len--;
    if (ml_str_is(name, "array") || ml_str_is(name, "matrix") ||
        ml_str_is(name, "smallmatrix"))
        return ml_str_of("matrix");
    if (!ends_with(name, "matrix"))
        return name;
    switch (name.ptr[0]) {
    case 'p':
    case 'b': return ml_str_of("matrix");
    case 'v': return ml_str_of("vmatrix");
    case 'V': return ml_str_of("Vmatrix");
    case 'B': return ml_str_of("Bmatrix");
    default: return name;
    }
}

/* Length in bytes of an option in brackets at p, such as [2mm] or [r]; 0: none.  An option
 * begins with a digit, point or sign and ends with a unit, or is one letter. */
static size_t option_at(const ml_lexer *x, const char *p) {
    const char *from = p + 1, *q = from;

    if (p >= x->end || *p != '[')
        return 0;
    while (q < x->end && (ml_is_digit_at(q, x->end) || *q == '.' || *q == '-' || *q == ' '))
        q++;
    if (q < x->end && *q == '\\')
        q++;
    if (!ml_is_letter_at(q, x->end))
        return 0;
    while (ml_is_letter_at(q, x->end))
        q++;
    return q < x->end && *q == ']' ? (size_t)(q + 1 - p) : 0;
}

/* Environments that only lay out a formula. */
static bool is_display(ml_str name) {
    static const char *const names[] = { "align",       "aligned",  "equation",
                                         "gather",      "gathered", "split",
                                         "displaymath", "math",     0 };

    if (name.len && name.ptr[name.len - 1] == '*')
        name.len--;
    for (const char *const *n = names; *n; n++)
        if (ml_str_is(name, *n))
            return true;
    return false;
}

/* \begin{pmatrix} and its end become brackets with rows inside. */
static void read_environment(ml_lexer *x, bool begin) {
    ml_str name, columns;

    if (!ml_lexer_peek_argument(x, &name)) {
        ml_lexer_push(x, ML_T_OTHER, ml_str_of(begin ? "begin" : "end"));
        return;
    }
    x->p += name.len + 2;
    if (is_display(name))
        return;
    if (begin)
        x->p += option_at(x, x->p);
    if (begin && ml_str_is(name, "array") && ml_lexer_peek_argument(x, &columns))
        x->p += columns.len + 2;
    name = matrix_name(name);
    if (!begin && x->n && ml_mtok_op(&x->tok[x->n - 1], "row"))
        x->n--; /* after the last row */
    ml_lexer_push(x, begin ? ML_T_OPEN : ML_T_CLOSE, name);
}

/* \\ may have a star and a length, which are ignored. */
static void read_row(ml_lexer *x) {
    ml_lexer_push_op(x, "row");
    if (x->p < x->end && *x->p == '*')
        x->p++;
    x->p += option_at(x, x->p);
}

static void do_macro(ml_lexer *x, const ml_macro *row) {
    ml_str inside;

    switch (row->sense) {
    case ML_MACRO_NOTHING:
        if (strcmp(row->name, "right") == 0 && x->p < x->end && *x->p == '.')
            x->p++;
        break;
    case ML_MACRO_SPACE: x->spaced = true; break;
    case ML_MACRO_FONT:
    case ML_MACRO_TEXT:
        ml_lexer_skip_blanks(x);
        open_hidden(x, row->sense == ML_MACRO_TEXT);
        break;
    case ML_MACRO_ARGUMENT:
        if (ml_lexer_peek_argument(x, &inside))
            x->p += inside.len + 2;
        break;
    case ML_MACRO_OP:
        if (strcmp(row->is, "row") == 0)
            read_row(x);
        else
            ml_lexer_push_op(x, row->is);
        break;
    case ML_MACRO_OPEN: ml_lexer_push(x, ML_T_OPEN, ml_str_of(row->is)); break;
    case ML_MACRO_CLOSE: ml_lexer_push(x, ML_T_CLOSE, ml_str_of(row->is)); break;
    case ML_MACRO_RENAME: ml_lexer_push(x, ML_T_MACRO, ml_str_of(row->is)); break;
    case ML_MACRO_WORD: ml_lexer_push(x, ML_T_WORD, ml_str_of(row->is)); break;
    }
}

/* Converts to lower case, including the names of Greek letters. */
static ml_str small_greek(ml_lexer *x, ml_str name) {
    ml_str small = ml_lexer_lowered(x, name.ptr, name.len);

    return ml_math_is_symbol(small) ? small : name;
}

void ml_lexer_macro(ml_lexer *x) {
    const char *from = ++x->p;
    const ml_macro *row;
    ml_str name;

    while (ml_is_letter_at(x->p, x->end))
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
    if ((ml_str_is(name, "overline") || ml_str_is(name, "bar")) ? read_overline(x)
        : ml_str_is(name, "dot")                                ? ml_lexer_repeating(x)
                                                                : false)
        return;
    if (row)
        do_macro(x, row);
    else if (ml_str_is(name, "begin") || ml_str_is(name, "end"))
        read_environment(x, ml_str_is(name, "begin"));
    else if (name.len == 0)
        ml_lexer_push(x, ML_T_OTHER, ml_str_of("\\"));
    else
        ml_lexer_push(x, ML_T_MACRO, small_greek(x, name));
}
