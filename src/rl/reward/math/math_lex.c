#include "rl/reward/math/math_lexer.h"

#include <string.h>

#include "base/bug.h"
#include "rl/reward/math/math_macros.h"
#include "rl/reward/math/math_plain.h"
#include "text/unicode.h"

#define DOLLAR_MAX 64 /* dollar signs that are matched, at most */

bool ml_mtok_is(const ml_mtok *t, ml_mtok_kind kind, const char *text) {
    return t->kind == kind && ml_str_is(t->text, text);
}

bool ml_mtok_op(const ml_mtok *t, const char *text) {
    return ml_mtok_is(t, ML_T_OP, text);
}

bool ml_mtok_is_money(const ml_mtok *t) {
    return t->kind == ML_T_OP &&
           (t->text.ptr[0] == '$' || (unsigned char)t->text.ptr[0] >= 0x80);
}

int ml_mtok_nests(const ml_mtok *t) {
    if (t->kind == ML_T_OPEN || t->kind == ML_T_GROUP)
        return 1;
    return t->kind == ML_T_CLOSE || t->kind == ML_T_UNGROUP ? -1 : 0;
}

ml_mtok *ml_lexer_push(ml_lexer *x, ml_mtok_kind kind, ml_str text) {
    ml_mtok *t;

    ML_BUG_IF(x->n == x->cap); /* a token has at least one byte */
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

void ml_lexer_push_op(ml_lexer *x, const char *text) {
    ml_lexer_push(x, ML_T_OP, ml_str_of(text));
}

bool ml_is_digit_at(const char *p, const char *end) {
    return p < end && *p >= '0' && *p <= '9';
}

bool ml_is_letter_at(const char *p, const char *end) {
    return p < end && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z'));
}

static bool begins(const ml_lexer *x, const char *what) {
    size_t n = strlen(what);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, what, n) == 0;
}

/* --- words -------------------------------------------------------------------- */

ml_str ml_lexer_lowered(ml_lexer *x, const char *from, size_t n) {
    char *s = ml_arena_str(x->arena, from, n);

    for (size_t i = 0; i < n; i++)
        if (s[i] >= 'A' && s[i] <= 'Z')
            s[i] = (char)(s[i] + 'a' - 'A');
    return (ml_str){ s, n };
}

/* The base of a numeral, as a word: 2041_{\\text{eight}}. */
static bool read_base(ml_lexer *x, ml_str word) {
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
            ml_lexer_push(x, ML_T_NUM, ml_str_of(digits[i]));
            return true;
        }
    return false;
}

/* Without braces, LaTeX raises only one letter, and takes only one as an argument. */
static bool takes_letter(const ml_lexer *x, ml_str word) {
    bool raised = x->n > 0 && ml_mtok_op(&x->tok[x->n - 1], "^");

    return x->text_from == 0 && word.len > 1 && (raised || ml_lexer_is_argument(x)) &&
           !ml_str_is(word, "pi") && !ml_math_is_function(word);
}

static void read_word(ml_lexer *x) {
    const char *from = x->p;
    ml_str word;

    while (ml_is_letter_at(x->p, x->end))
        x->p++;
    word = ml_lexer_lowered(x, from, (size_t)(x->p - from));
    if (takes_letter(x, word)) {
        word.len = 1;
        x->p = from + 1;
    }
    if (ml_lexer_magnitude(x, word) || read_base(x, word))
        return;
    if (ml_str_is(word, "and") || ml_str_is(word, "or"))
        ml_lexer_push_op(x, word.ptr);
    else if (ml_str_is(word, "inf") || ml_str_is(word, "infinity"))
        ml_lexer_push(x, ML_T_MACRO, ml_str_of("infty"));
    else
        ml_lexer_push(x, ML_T_WORD, word)->capitals = memcmp(word.ptr, from, word.len) != 0;
}

/* --- other tokens ------------------------------------------------------------- */

/* {} that is not an argument has no meaning. */
static bool is_empty_group(const ml_lexer *x) {
    const ml_mtok *before = x->n > 1 ? &x->tok[x->n - 2] : NULL;

    return x->n > 0 && x->tok[x->n - 1].kind == ML_T_GROUP &&
           (!before || before->kind == ML_T_NUM || before->kind == ML_T_WORD);
}

/* Removes it; digits on both sides become one number. */
static void drop_empty_group(ml_lexer *x) {
    const char *from = x->p;
    ml_mtok *last = --x->n > 0 ? &x->tok[x->n - 1] : NULL;

    if (!last || last->kind != ML_T_NUM || last->magnitude || last->repeat.len)
        return;
    while (ml_is_digit_at(x->p, x->end))
        x->p++;
    last->text = ml_str_of(ml_arena_printf(x->arena, "%.*s%.*s", (int)last->text.len,
                                           last->text.ptr, (int)(x->p - from), from));
}

static void read_brace(ml_lexer *x) {
    if (*x->p++ == '{') {
        x->hidden[x->depth++] = 0;
        ml_lexer_push(x, ML_T_GROUP, ml_str_of("{"));
    } else if (x->depth == 0)
        ml_lexer_push(x, ML_T_UNGROUP, ml_str_of("}"));
    else {
        if (x->text_from == x->depth)
            x->text_from = 0;
        if (x->hidden[--x->depth])
            return;
        if (is_empty_group(x))
            drop_empty_group(x);
        else
            ml_lexer_push(x, ML_T_UNGROUP, ml_str_of("}"));
    }
}

static void read_sign(ml_lexer *x) {
    static const struct {
        const char *source, *op;
    } rows[] = { { "**", "^" }, { "<=", "<=" }, { ">=", ">=" }, { "!=", "!=" },
                 { "+", "+" },  { "-", "-" },   { "*", "*" },   { "/", "/" },
                 { "^", "^" },  { "_", "_" },   { "!", "!" },   { "|", "|" },
                 { "=", "=" },  { "<", "<" },   { ">", ">" },   { ",", "," },
                 { ":", ":" },  { "%", "%" },   { "&", "&" } };

    if (begins(x, "//")) { /* Python's integer division, which no answer uses */
        ml_lexer_push(x, ML_T_OTHER, (ml_str){ x->p, 2 });
        x->p += 2;
        return;
    }
    if (*x->p == '&' && x->brackets == 0) { /* outside a matrix it only aligns */
        x->p++;
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (begins(x, rows[i].source)) {
            x->p += strlen(rows[i].source);
            ml_lexer_push_op(x, rows[i].op);
            return;
        }
    ml_lexer_push(x, ML_T_OTHER, (ml_str){ x->p++, 1 });
}

/* The dollar sign that closes the formula opened at p; NULL: none.  As in Markdown, no
 * space follows the opening sign or precedes the closing one, and no digit follows the
 * closing one. */
static const char *closing_dollar(const ml_lexer *x, const char *p) {
    if (p + 1 < x->end && p[1] == ' ')
        return NULL;
    for (const char *q = p + 1; q < x->end; q++)
        if (*q == '$' && q[-1] != '\\' && (q == p + 1 || q[-1] != ' ') &&
            !ml_is_digit_at(q + 1, x->end))
            return q;
    return NULL;
}

/* A dollar sign encloses a formula, or is a currency sign before or after a number. */
static void read_dollar(ml_lexer *x) {
    const char *p = x->p++;
    bool after = x->n && x->tok[x->n - 1].kind == ML_T_NUM;

    if (p < x->formula_end)
        return;
    if (p == x->formula_end) {
        x->formula_end = NULL;
        return;
    }
    x->formula_end = ++x->n_dollar <= DOLLAR_MAX ? closing_dollar(x, p) : NULL;
    if (!x->formula_end &&
        (after || ml_is_digit_at(x->p, x->end) || (x->p < x->end && strchr(".-", *x->p))))
        ml_lexer_push_op(x, "$");
}

static void read_ascii(ml_lexer *x) {
    char c = *x->p;

    if (ml_is_digit_at(x->p, x->end) ||
        (c == '.' && ml_is_digit_at(x->p + 1, x->end) &&
         (x->spaced || !x->n || x->tok[x->n - 1].kind != ML_T_NUM)))
        ml_lexer_number(x);
    else if (ml_is_letter_at(x->p, x->end))
        read_word(x);
    else if (c == '\\')
        ml_lexer_macro(x);
    else if (c == '{' || c == '}')
        read_brace(x);
    else if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '~') {
        x->spaced = true;
        x->p++;
    } else if (c == '$')
        read_dollar(x);
    else if (c == '(' && ml_lexer_bracketed_repeat(x))
        return;
    else if (c == '(' || c == '[')
        ml_lexer_push(x, ML_T_OPEN, (ml_str){ x->p++, 1 });
    else if (c == ')' || c == ']')
        ml_lexer_push(x, ML_T_CLOSE, (ml_str){ x->p++, 1 });
    else
        read_sign(x);
}

/* cent, pound, yen, euro, rupee */
static bool is_money_sign(uint32_t c) {
    return c == 0xa2 || c == 0xa3 || c == 0xa5 || c == 0x20ac || c == 0x20b9;
}

bool ml_math_lex(ml_mtoks *out, ml_arena *a, ml_str src) {
    ml_lexer x = { .arena = a };
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
            bool money = is_money_sign(ml_utf8_next(&x.p));
            ml_lexer_push(&x, money ? ML_T_OP : ML_T_OTHER,
                          (ml_str){ from, (size_t)(x.p - from) });
        }
    }
    *out = (ml_mtoks){ x.tok, x.n };
    ml_lexer_join(out, x.tok, a);
    return true;
}
