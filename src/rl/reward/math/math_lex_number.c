/* Numbers, and the words and marks that modify them. */
#include "rl/reward/math/math_lexer.h"

#include <string.h>

#define ARGUMENT_TOKENS 200 /* longest argument in braces that is examined */

/* --- numbers ------------------------------------------------------------------ */

/* Length in bytes of a thousands separator at p; 0: none.  Inside brackets a plain comma
 * separates elements. */
static size_t separator(const ml_lexer *x, const char *p) {
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

/* True if there are exactly three digits at p. */
static bool three_digits(const char *p, const char *end) {
    return ml_is_digit_at(p, end) && ml_is_digit_at(p + 1, end) &&
           ml_is_digit_at(p + 2, end) && !ml_is_digit_at(p + 3, end);
}

static void add_exponent(ml_lexer *x, ml_text *t) {
    const char *q = x->p;

    if (q >= x->end || (*q != 'e' && *q != 'E'))
        return;
    q++;
    if (q < x->end && (*q == '+' || *q == '-'))
        q++;
    if (!ml_is_digit_at(q, x->end))
        return;
    while (ml_is_digit_at(q, x->end))
        q++;
    ml_text_add(t, x->p, (size_t)(q - x->p));
    x->p = q;
}

static void add_digits(ml_lexer *x, ml_text *t) {
    const char *from = x->p;

    while (ml_is_digit_at(x->p, x->end))
        x->p++;
    ml_text_add(t, from, (size_t)(x->p - from));
}

static bool takes_two(const ml_mtok *t) {
    return ml_mtok_is(t, ML_T_MACRO, "frac") || ml_mtok_is(t, ML_T_MACRO, "binom");
}

/* Index of the bracket or brace that the one at `at` closes; 0 if there is none. */
static int32_t opened_at(const ml_lexer *x, int32_t at) {
    int32_t low = at > ARGUMENT_TOKENS ? at - ARGUMENT_TOKENS : 0;
    int depth = 0;

    for (; at > low; at--) {
        depth -= ml_mtok_nests(&x->tok[at]);
        if (depth == 0)
            return at;
    }
    return 0;
}

/* True if the next token is an unbraced macro argument: \frac12, \sqrt x, \binom n2. */
bool ml_lexer_is_argument(const ml_lexer *x) {
    const ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;
    int32_t first = x->n - 1; /* start of the previous argument */

    if (!last || last->kind == ML_T_GROUP || last->kind == ML_T_OPEN ||
        last->kind == ML_T_OP)
        return false;
    if (takes_two(last) || ml_mtok_is(last, ML_T_MACRO, "sqrt"))
        return true;
    if (last->kind == ML_T_UNGROUP || ml_mtok_is(last, ML_T_CLOSE, "]"))
        first = opened_at(x, x->n - 1);
    if (first < 1)
        return false;
    if (last->kind == ML_T_CLOSE)
        return ml_mtok_is(&x->tok[first - 1], ML_T_MACRO, "sqrt");
    return takes_two(&x->tok[first - 1]);
}

/* Number of digits that LaTeX would take here as an argument: \frac12 is a half.  0: not
 * an argument. \frac102 can only mean ten halves. */
static size_t argument_digits(const ml_lexer *x) {
    size_t run = 0;

    if (!ml_is_digit_at(x->p, x->end) || !ml_lexer_is_argument(x))
        return 0;
    while (ml_is_digit_at(x->p + run, x->end))
        run++;
    return ml_mtok_is(&x->tok[x->n - 1], ML_T_MACRO, "frac") && run > 2 && x->p[1] == '0'
               ? run - 1
               : 1;
}

static void add_groups(ml_lexer *x, ml_text *t) {
    size_t n;

    add_digits(x, t);
    if (t->len < 1 || t->len > 3)
        return;
    while ((n = separator(x, x->p)) > 0 && three_digits(x->p + n, x->end)) {
        x->p += n;
        add_digits(x, t);
    }
}

void ml_lexer_number(ml_lexer *x) {
    size_t argument = argument_digits(x);
    ml_text t = { 0 };

    ml_text_add(&t, x->p, argument);
    x->p += argument;
    if (argument == 0) {
        add_groups(x, &t);
        if (x->p < x->end && *x->p == '.' && (t.len || ml_is_digit_at(x->p + 1, x->end))) {
            ml_text_add(&t, x->p++, 1);
            add_digits(x, &t);
        }
        add_exponent(x, &t);
    }
    ml_lexer_push(x, ML_T_NUM, (ml_str){ ml_arena_str(x->arena, t.ptr, t.len), t.len });
    ml_text_release(&t);
}

/* The power of ten that a word after a number denotes; NULL: none. */
static const char *power_word(ml_str word) {
    static const struct {
        const char *word, *power;
    } rows[] = { { "hundred", "1e2" },      { "thousand", "1e3" },
                 { "million", "1e6" },      { "billion", "1e9" },
                 { "trillion", "1e12" },    { "quadrillion", "1e15" },
                 { "quintillion", "1e18" }, { "lakh", "1e5" },
                 { "crore", "1e7" },        { "tenth", "1e-1" },
                 { "hundredth", "1e-2" },   { "thousandth", "1e-3" },
                 { "millionth", "1e-6" },   { "dozen", "12" } };

    if (word.len > 5 && word.ptr[word.len - 1] == 's')
        word.len--;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(word, rows[i].word))
            return rows[i].power;
    return NULL;
}

/* A number that is not part of a larger expression. */
static bool is_lone_number(const ml_lexer *x) {
    const ml_mtok *last;
    ml_mtok_kind before;

    if (!x->n)
        return false;
    last = &x->tok[x->n - 1];
    before = x->n > 1 ? last[-1].kind : ML_T_OPEN;
    return last->kind == ML_T_NUM && !last->repeat.len &&
           !memchr(last->text.ptr, 'e', last->text.len) &&
           (before == ML_T_OPEN || (before == ML_T_OP && !ml_mtok_op(last - 1, "/") &&
                                    !ml_mtok_op(last - 1, "^")));
}

/* Turns "million" after a number into its exponent, and after another value into a
 * factor. */
bool ml_lexer_magnitude(ml_lexer *x, ml_str word) {
    const char *power = power_word(word);
    ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;

    if (!power || !last || (last->kind != ML_T_NUM && last->kind != ML_T_UNGROUP))
        return false;
    if (is_lone_number(x) && power[1] == 'e') {
        last->text = ml_str_of(ml_arena_printf(x->arena, "%.*s%s", (int)last->text.len,
                                               last->text.ptr, power + 1));
        last->magnitude = true;
        return true;
    }
    ml_lexer_push_op(x, "*");
    ml_lexer_push(x, ML_T_NUM, ml_str_of(power))->magnitude = true;
    return true;
}

/* --- repeating decimals ------------------------------------------------------- */

/* The marked digits: in braces, in brackets, or a single one. */
static bool peek_digits(const ml_lexer *x, ml_str *inside, size_t *whole) {
    if (ml_is_digit_at(x->p, x->end)) {
        *inside = (ml_str){ x->p, 1 };
        *whole = 1;
        return true;
    }
    *whole = ml_lexer_peek_argument(x, inside) ? inside->len + 2 : 0;
    return *whole > 0 && ml_all_of(*inside, ml_is_digit_at);
}

/* A mark on digits after a decimal point: the digits repeat. */
bool ml_lexer_repeating(ml_lexer *x) {
    ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;
    ml_str inside;
    size_t whole;

    if (!last || last->kind != ML_T_NUM || last->repeat.len ||
        !memchr(last->text.ptr, '.', last->text.len))
        return false;
    ml_lexer_skip_blanks(x);
    if (!peek_digits(x, &inside, &whole))
        return false;
    last->repeat = inside;
    x->p += whole;
    return true;
}

/* 0.1(6) */
bool ml_lexer_bracketed_repeat(ml_lexer *x) {
    const char *p = x->p + 1;
    ml_mtok *last = x->n ? &x->tok[x->n - 1] : NULL;

    while (ml_is_digit_at(p, x->end))
        p++;
    if (!last || last->kind != ML_T_NUM || x->spaced || last->repeat.len || p == x->p + 1 ||
        p >= x->end || *p != ')' || !memchr(last->text.ptr, '.', last->text.len))
        return false;
    last->repeat = (ml_str){ x->p + 1, (size_t)(p - x->p - 1) };
    x->p = p + 1;
    return true;
}
