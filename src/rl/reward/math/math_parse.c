#include "rl/reward/math/math_parse.h"

#include <string.h>

#include "rl/reward/math/math_macros.h"
#include "rl/reward/math/math_number.h"

#define DEPTH_MAX 100
#define BINOMIAL_MAX 30 /* maximum number of factors of a binomial coefficient */

typedef struct parser {
    ml_algebra *a;
    const ml_mtok *t, *end;
    int depth;
    bool failed;
    bool in_bars; /* between | and |, where another | closes */
} parser;

static ml_ratfun sum(parser *p);
static ml_ratfun whole(parser *p);
static ml_ratfun factor(parser *p);
static ml_ratfun absolute(parser *p, ml_ratfun v);

static ml_ratfun number(parser *p, int64_t v) {
    return ml_ratfun_int(p->a, ml_big_of(&p->a->work, v));
}

static ml_ratfun fail(parser *p) {
    p->failed = true;
    p->t = p->end;
    return number(p, 1);
}

static bool at_op(const parser *p, const char *op) {
    return p->t < p->end && ml_mtok_op(p->t, op);
}

static bool at(const parser *p, ml_mtok_kind kind, const char *text) {
    return p->t < p->end && ml_mtok_is(p->t, kind, text);
}

/* --- arguments ---------------------------------------------------------------- */

/* Parses up to the bracket that closes the one just opened. */
static ml_ratfun until(parser *p, ml_mtok_kind kind, const char *text) {
    ml_ratfun v = whole(p);

    if (p->failed || p->t >= p->end || p->t->kind != kind ||
        (text && !ml_str_is(p->t->text, text)))
        return fail(p);
    p->t++;
    return v;
}

static ml_ratfun letter_symbol(parser *p, ml_str word, size_t i) {
    return ml_ratfun_symbol(p->a, (ml_str){ word.ptr + i, 1 });
}

/* A LaTeX argument: braces, or the next token. */
static ml_ratfun argument(parser *p) {
    if (p->t >= p->end)
        return fail(p);
    if (p->t->kind == ML_T_GROUP) {
        p->t++;
        return until(p, ML_T_UNGROUP, NULL);
    }
    return factor(p);
}

/* True if the next factor still belongs to a function's argument, like x in \sin 2x.  Only
 * numbers and symbols do and, after a number, tokens that cannot be anything else. */
static bool goes_on(const parser *p) {
    const ml_mtok *t = p->t;
    bool number = t[-1].kind == ML_T_NUM;

    if (t >= p->end || t->kind == ML_T_NUM)
        return false;
    if (t->kind == ML_T_WORD)
        return !t->in_text && !ml_math_is_function(t->text) && !ml_str_is(t->text, "e");
    if (t->kind == ML_T_MACRO)
        return ml_math_is_symbol(t->text) || (number && !ml_math_is_function(t->text));
    return number && (t->kind == ML_T_OPEN || t->kind == ML_T_GROUP);
}

/* name(x, y): up to three arguments in brackets; otherwise the factors that follow. */
static int32_t call_arguments(parser *p, ml_ratfun arg[ML_ATOM_ARGS]) {
    int32_t n = 0;

    if (p->t < p->end && p->t->kind == ML_T_GROUP) {
        arg[0] = argument(p);
        return 1;
    }
    if (!at(p, ML_T_OPEN, "(")) {
        arg[0] = factor(p);
        while (!p->failed && goes_on(p))
            arg[0] = ml_ratfun_mul(p->a, arg[0], factor(p));
        return 1;
    }
    do {
        p->t++;
        if (n == ML_ATOM_ARGS) {
            fail(p);
            return 0;
        }
        arg[n++] = sum(p);
    } while (at_op(p, ","));
    if (!at(p, ML_T_CLOSE, ")")) {
        fail(p);
        return 0;
    }
    p->t++;
    return n;
}

/* --- functions ---------------------------------------------------------------- */

static ml_ratfun root(parser *p) {
    int64_t index = 2;

    if (at(p, ML_T_OPEN, "[")) {
        ml_ratfun i;
        p->t++;
        i = until(p, ML_T_CLOSE, "]");
        if (p->failed || !ml_ratfun_is_int(i, &index))
            return fail(p);
    }
    return ml_ratfun_root(p->a, argument(p), index);
}

/* The function that a power of -1 denotes: \sin^{-1} is not 1/\sin; NULL: none. */
static const char *inverse_of(ml_str name) {
    static const char *const rows[][2] = { { "sin", "arcsin" },
                                           { "cos", "arccos" },
                                           { "tan", "arctan" } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(name, rows[i][0]))
            return rows[i][1];
    return NULL;
}

/* An opaque function; its subscript (log_2) and power (sin^2) are part of it. */
static ml_ratfun function(parser *p, ml_str name) {
    ml_ratfun arg[ML_ATOM_ARGS + 1], power = number(p, 1);
    int64_t whole;
    int32_t n;

    if (at_op(p, "_")) {
        ml_ratfun base;
        p->t++;
        base = argument(p);
        n = call_arguments(p, arg);
        if (n != 1)
            return fail(p);
        arg[1] = base;
        return ml_ratfun_call(p->a, name, arg, 2);
    }
    if (at_op(p, "^")) {
        p->t++;
        power = argument(p);
    }
    n = call_arguments(p, arg);
    if (p->failed)
        return fail(p);
    if (ml_str_is(name, "exp") && n == 1)
        return ml_ratfun_pow(p->a, ml_ratfun_symbol(p->a, ml_str_of("e")),
                             ml_ratfun_mul(p->a, arg[0], power));
    if (ml_ratfun_is_int(power, &whole) && whole == -1 && inverse_of(name)) {
        name = ml_str_of(inverse_of(name));
        power = number(p, 1);
    }
    if (ml_str_is(name, "pow"))
        return n == 2 ? ml_ratfun_pow(p->a, arg[0], arg[1]) : fail(p);
    if (ml_str_is(name, "abs") && n == 1)
        return ml_ratfun_pow(p->a, absolute(p, arg[0]), power);
    if (ml_str_is(name, "sqrt"))
        return n == 1 ? ml_ratfun_root(p->a, arg[0], 2) : fail(p);
    return ml_ratfun_pow(p->a, ml_ratfun_call(p->a, name, arg, n), power);
}

static ml_ratfun fraction(parser *p) {
    ml_ratfun num = argument(p), den = argument(p);

    return ml_ratfun_div(p->a, num, den);
}

/* n choose k; expanded to a product if k is a small number, or n is one and k is close to
 * it. */
static ml_ratfun binomial(parser *p, ml_ratfun n, ml_ratfun k) {
    ml_ratfun v = number(p, 1), arg[2] = { n, k };
    int64_t whole_n, whole_k;

    if (ml_ratfun_is_int(n, &whole_n) && ml_ratfun_is_int(k, &whole_k) && whole_k >= 0 &&
        whole_k <= whole_n && whole_n - whole_k < whole_k)
        k = number(p, whole_n - whole_k);
    if (!ml_ratfun_is_int(k, &whole_k) || whole_k < 0 || whole_k > BINOMIAL_MAX)
        return ml_ratfun_call(p->a, ml_str_of("binom"), arg, 2);
    for (int64_t i = 0; i < whole_k && !p->a->work.spent; i++) {
        v = ml_ratfun_mul(p->a, v, ml_ratfun_add(p->a, n, number(p, -i)));
        v = ml_ratfun_div(p->a, v, number(p, i + 1));
    }
    return v;
}

static ml_ratfun subscripted(parser *p, ml_str word);

/* The operand of an accent: several letters are one name, \vec{AB} is not \vec{BA}. */
static ml_ratfun accented(parser *p) {
    const ml_mtok *t = p->t;

    if (p->end - t >= 3 && t->kind == ML_T_GROUP && t[1].kind == ML_T_WORD &&
        t[2].kind == ML_T_UNGROUP) {
        p->t += 3;
        return ml_ratfun_symbol(p->a, t[1].text);
    }
    return argument(p);
}

/* An unknown macro with arguments is a function of them.  Without arguments it is a
 * symbol, or cannot be evaluated. */
static ml_ratfun unknown(parser *p, ml_str name) {
    ml_ratfun arg[ML_ATOM_ARGS];
    int32_t n = 0;

    if (ml_math_is_accent(name))
        arg[n++] = accented(p);
    else
        while (n < ML_ATOM_ARGS && p->t < p->end && p->t->kind == ML_T_GROUP)
            arg[n++] = argument(p);
    if (n)
        return ml_ratfun_call(p->a, name, arg, n);
    if (!ml_math_is_symbol(name))
        return fail(p);
    return at_op(p, "_") ? subscripted(p, name) : ml_ratfun_symbol(p->a, name);
}

static ml_ratfun macro(parser *p) {
    ml_str name = p->t->text;

    p->t++;
    if (ml_str_is(name, "frac"))
        return fraction(p);
    if (ml_str_is(name, "sqrt"))
        return root(p);
    if (ml_str_is(name, "binom")) {
        ml_ratfun n = argument(p), k = argument(p);
        return binomial(p, n, k);
    }
    if (ml_math_is_function(name))
        return function(p, name);
    return unknown(p, name);
}

/* --- words -------------------------------------------------------------------- */

/* x_1 is a separate symbol. */
static ml_ratfun subscripted(parser *p, ml_str word) {
    ml_text name = { 0 };
    ml_ratfun v;

    ml_text_add(&name, word.ptr, word.len);
    p->t++;
    if (p->t < p->end && p->t->kind == ML_T_GROUP)
        for (p->t++; p->t < p->end && p->t->kind != ML_T_UNGROUP; p->t++)
            ml_text_printf(&name, "_%.*s", (int)p->t->text.len, p->t->text.ptr);
    else if (p->t < p->end)
        ml_text_printf(&name, "_%.*s", (int)p->t->text.len, p->t->text.ptr);
    if (p->t >= p->end) {
        ml_text_release(&name);
        return fail(p);
    }
    p->t++;
    v = ml_ratfun_symbol(
        p->a, (ml_str){ ml_arena_str(p->a->work.arena, name.ptr, name.len), name.len });
    ml_text_release(&name);
    return v;
}

/* A few adjacent letters are a product; a power applies to the last of them. */
static ml_ratfun letters(parser *p, ml_str word) {
    ml_ratfun v = number(p, 1);

    if (word.len > 3 ||
        (p->t[-1].in_text && !ml_str_is(word, "e") && !ml_str_is(word, "i")))
        return fail(p);
    for (size_t i = 0; i + 1 < word.len; i++)
        v = ml_ratfun_mul(p->a, v, letter_symbol(p, word, i));
    word = (ml_str){ word.ptr + word.len - 1, 1 };
    if (at_op(p, "_"))
        v = ml_ratfun_mul(p->a, v, subscripted(p, word));
    else if (strchr("fgh", word.ptr[0]) && at(p, ML_T_OPEN, "(") && !p->t->spaced)
        v = ml_ratfun_mul(p->a, v, function(p, word));
    else {
        ml_ratfun last = letter_symbol(p, word, 0);
        if (at_op(p, "^")) {
            p->t++;
            last = ml_ratfun_pow(p->a, last, factor(p));
        }
        v = ml_ratfun_mul(p->a, v, last);
    }
    return v;
}

static ml_ratfun word(parser *p) {
    ml_str text = p->t->text;

    p->t++;
    if (ml_str_is(text, "pi"))
        return ml_ratfun_symbol(p->a, text);
    if (ml_math_is_function(text))
        return function(p, text);
    return letters(p, text);
}

/* --- grammar ------------------------------------------------------------------ */

/* |v|; evaluated if v is an integer. */
static ml_ratfun absolute(parser *p, ml_ratfun v) {
    int64_t n;

    if (ml_ratfun_is_int(v, &n))
        return number(p, n < 0 ? -n : n);
    return ml_ratfun_call(p->a, ml_str_of("abs"), &v, 1);
}

static ml_ratfun bars(parser *p) {
    bool outer = p->in_bars;
    ml_ratfun v;

    p->in_bars = true;
    v = until(p, ML_T_OP, "|");
    p->in_bars = outer;
    return absolute(p, v);
}

/* Skips a number as an argument, with or without braces; NULL: there is none. */
static const ml_mtok *after_number_argument(const parser *p, const ml_mtok *t) {
    if (p->end - t >= 1 && t->kind == ML_T_NUM)
        return t + 1;
    return p->end - t >= 3 && t->kind == ML_T_GROUP && t[1].kind == ML_T_NUM &&
                   t[2].kind == ML_T_UNGROUP
               ? t + 3
               : NULL;
}

/* 2 3/4 and 2\frac{3}{4}: an integer and a fraction of integers. */
static bool mixed_part(const parser *p) {
    const ml_mtok *t = p->t;

    if (p->end - t >= 3 && t->kind == ML_T_NUM && t->spaced && ml_mtok_op(t + 1, "/") &&
        t[2].kind == ML_T_NUM)
        return true;
    if (p->end - t < 3 || !ml_mtok_is(t, ML_T_MACRO, "frac"))
        return false;
    t = after_number_argument(p, t + 1);
    return t && after_number_argument(p, t);
}

static ml_ratfun numeral(parser *p) {
    const ml_mtok *t = p->t++;
    ml_ratfun v = ml_math_number(p->a, t), part;

    if (at_op(p, "_"))
        return subscripted(p, t->text);
    if (memchr(t->text.ptr, '.', t->text.len) || !mixed_part(p))
        return v;
    if (p->t->kind == ML_T_NUM) {
        part =
            ml_ratfun_div(p->a, ml_math_number(p->a, p->t), ml_math_number(p->a, p->t + 2));
        p->t += 3;
    } else {
        p->t++;
        part = fraction(p);
    }
    return ml_ratfun_add(p->a, v, part);
}

/* The \choose before the end of these braces; NULL: none. */
static const ml_mtok *choose_at(const parser *p) {
    int depth = 0;

    for (const ml_mtok *t = p->t; t < p->end && depth >= 0; t++) {
        if (depth == 0 && ml_mtok_is(t, ML_T_MACRO, "choose"))
            return t;
        depth += ml_mtok_nests(t);
    }
    return NULL;
}

/* The whole contents of braces, or of the input: a sum, or {n \choose k}. */
static ml_ratfun whole(parser *p) {
    const ml_mtok *choose = choose_at(p), *end = p->end;
    ml_ratfun n;

    if (!choose)
        return sum(p);
    p->end = choose;
    n = sum(p);
    if (p->failed || p->t != choose)
        return fail(p);
    p->end = end;
    p->t++;
    return binomial(p, n, sum(p));
}

static ml_ratfun primary(parser *p) {
    if (p->t >= p->end)
        return fail(p);
    switch (p->t->kind) {
    case ML_T_NUM: return numeral(p);
    case ML_T_WORD: return word(p);
    case ML_T_MACRO: return macro(p);
    case ML_T_GROUP: p->t++; return until(p, ML_T_UNGROUP, NULL);
    case ML_T_OPEN:
        if (!ml_str_is(p->t->text, "(") && !ml_str_is(p->t->text, "["))
            return fail(p);
        p->t++;
        return until(p, ML_T_CLOSE, ml_str_is(p->t[-1].text, "(") ? ")" : "]");
    case ML_T_OP:
        if (!at_op(p, "|"))
            return fail(p);
        p->t++;
        return bars(p);
    default: return fail(p);
    }
}

static ml_ratfun factorial(parser *p, ml_ratfun v) {
    int64_t n = 0, product = 1;

    if (!ml_ratfun_is_int(v, &n) || n < 0 || n > 20)
        return ml_ratfun_call(p->a, ml_str_of("factorial"), &v, 1);
    for (int64_t i = 2; i <= n; i++)
        product *= i;
    return number(p, product);
}

static ml_ratfun radians(parser *p, ml_ratfun v) {
    ml_ratfun pi = ml_ratfun_symbol(p->a, ml_str_of("pi"));

    return ml_ratfun_div(p->a, ml_ratfun_mul(p->a, v, pi), number(p, 180));
}

/* A signed power: an exponent, or an operand of a multiplication sign. */
static ml_ratfun factor(parser *p) {
    ml_ratfun v;

    if (++p->depth > DEPTH_MAX || p->failed) {
        p->depth--;
        return fail(p);
    }
    if (at_op(p, "-") || at_op(p, "+")) {
        bool minus = ml_mtok_op(p->t++, "-");
        /* Two consecutive signs are a typo, not an answer. */
        v = at_op(p, "-") || at_op(p, "+") ? fail(p) : factor(p);
        v = minus ? ml_ratfun_minus(p->a, v) : v;
    } else {
        v = primary(p);
        for (; at_op(p, "!") || at_op(p, "deg"); p->t++)
            v = at_op(p, "!") ? factorial(p, v) : radians(p, v);
        if (at_op(p, "^")) {
            p->t++;
            v = ml_ratfun_pow(p->a, v, factor(p));
        }
    }
    p->depth--;
    return v;
}

static bool begins_factor(const parser *p) {
    const ml_mtok *t = p->t;

    if (t >= p->end)
        return false;
    if (t->kind == ML_T_GROUP && p->end - t > 1 && t[1].kind == ML_T_NUM)
        return t[-1].kind != ML_T_NUM;
    if (t->kind == ML_T_NUM) /* digits after a space are not a factor */
        return t[-1].kind != ML_T_NUM;
    return t->kind == ML_T_WORD || t->kind == ML_T_MACRO || t->kind == ML_T_GROUP ||
           t->kind == ML_T_OPEN || (ml_mtok_op(t, "|") && !p->in_bars);
}

static ml_ratfun product(parser *p) {
    ml_ratfun v = factor(p);

    while (!p->failed && !p->a->work.spent) {
        if (at_op(p, "*")) {
            p->t++;
            v = ml_ratfun_mul(p->a, v, factor(p));
        } else if (at_op(p, "/")) {
            p->t++;
            v = ml_ratfun_div(p->a, v, factor(p));
        } else if (begins_factor(p))
            v = ml_ratfun_mul(p->a, v, factor(p));
        else
            break;
    }
    return v;
}

static ml_ratfun sum(parser *p) {
    ml_ratfun v;

    if (++p->depth > DEPTH_MAX) {
        p->depth--;
        return fail(p);
    }
    v = product(p);
    while (!p->failed && !p->a->work.spent && (at_op(p, "+") || at_op(p, "-"))) {
        bool minus = ml_mtok_op(p->t++, "-");
        ml_ratfun next = product(p);
        v = ml_ratfun_add(p->a, v, minus ? ml_ratfun_minus(p->a, next) : next);
    }
    p->depth--;
    return v;
}

bool ml_math_parse(ml_ratfun *out, ml_algebra *a, ml_mtoks toks) {
    parser p = { .a = a, .t = toks.t, .end = toks.t + toks.n };

    *out = toks.n ? whole(&p) : fail(&p);
    return !p.failed && !a->work.spent && p.t == p.end;
}
