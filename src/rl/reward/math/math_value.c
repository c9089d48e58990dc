#include "rl/reward/math/math_value.h"

#include <string.h>

#include "rl/reward/math/math_macros.h"
#include "rl/reward/math/math_parse.h"

ml_mtoks ml_mtoks_part(ml_mtoks x, int32_t from, int32_t to) {
    return (ml_mtoks){ x.t + from, to > from ? to - from : 0 };
}

/* --- text --------------------------------------------------------------------- */

/* Braces around a single token have no meaning: x^{2} is x^2.  Around several letters they
 * group an exponent, an index or an argument: e^{kt} is not e^kt. */
static bool is_idle_pair(ml_mtoks x, int32_t open) {
    const ml_mtok *inside = &x.t[open + 1], *before = &x.t[open - 1];

    if (open < 0 || open + 2 >= x.n || x.t[open].kind != ML_T_GROUP ||
        x.t[open + 2].kind != ML_T_UNGROUP || ml_mtok_nests(inside))
        return false;
    return inside->kind != ML_T_WORD || inside->text.len == 1 || inside->in_text ||
           open == 0 || ml_mtok_is(inside, ML_T_WORD, "pi") ||
           !(before->kind == ML_T_MACRO || before->kind == ML_T_UNGROUP ||
             ml_mtok_op(before, "^") || ml_mtok_op(before, "_"));
}

static bool is_idle_brace(ml_mtoks x, int32_t i) {
    return is_idle_pair(x, i) || (x.t[i].kind == ML_T_UNGROUP && is_idle_pair(x, i - 2));
}

static int32_t next_visible(ml_mtoks x, int32_t i) {
    while (i < x.n && is_idle_brace(x, i))
        i++;
    return i;
}

bool ml_mtoks_same_text(ml_mtoks x, ml_mtoks y) {
    int32_t i = next_visible(x, 0), j = next_visible(y, 0);
    size_t u = 0, v = 0; /* words may be split differently: n o, no */

    while (i < x.n && j < y.n) {
        const ml_mtok *s = &x.t[i], *t = &y.t[j];
        bool words = s->kind == ML_T_WORD && t->kind == ML_T_WORD;
        if (words ? s->text.ptr[u] != t->text.ptr[v]
                  : u || v || s->kind != t->kind || !ml_str_eq(s->text, t->text) ||
                        !ml_str_eq(s->repeat, t->repeat))
            return false;
        u = words ? u + 1 : s->text.len;
        v = words ? v + 1 : t->text.len;
        if (u >= s->text.len) {
            i = next_visible(x, i + 1);
            u = 0;
        }
        if (v >= t->text.len) {
            j = next_visible(y, j + 1);
            v = 0;
        }
    }
    return i == x.n && j == y.n;
}

/* --- refusals of the strict mode ---------------------------------------------- */

/* A numeric literal, optionally signed or in brackets. */
static const ml_mtok *literal(ml_mtoks x) {
    while (x.n > 2 && ml_mtok_is(&x.t[0], ML_T_OPEN, "(") &&
           ml_mtok_is(&x.t[x.n - 1], ML_T_CLOSE, ")"))
        x = ml_mtoks_part(x, 1, x.n - 1);
    if (x.n == 2 && (ml_mtok_op(&x.t[0], "-") || ml_mtok_op(&x.t[0], "+")))
        x = ml_mtoks_part(x, 1, 2);
    while (x.n > 2 && x.t[0].kind == ML_T_GROUP && x.t[x.n - 1].kind == ML_T_UNGROUP)
        x = ml_mtoks_part(x, 1, x.n - 1);
    return x.n == 1 && x.t[0].kind == ML_T_NUM && !x.t[0].repeat.len ? &x.t[0] : NULL;
}

static bool is_whole(ml_mcompare *c, const ml_mtok *t) {
    ml_algebra a = { .work = { c->arena, c->work, false } };
    ml_ratfun v;
    int64_t whole;

    if (!memchr(t->text.ptr, '.', t->text.len) && !memchr(t->text.ptr, '-', t->text.len))
        return true;
    return ml_math_parse(&v, &a, (ml_mtoks){ t, 1 }) && ml_ratfun_is_int(v, &whole);
}

/* An integer literal compared with an expression. */
static bool whole_against_sum(ml_mcompare *c, ml_mtoks x, ml_mtoks y) {
    const ml_mtok *s = literal(x), *t = literal(y);

    if (s && t)
        return false;
    return (s && is_whole(c, s)) || (t && is_whole(c, t));
}

/* a/b of two integers, as \frac or with a slash. */
static bool plain_fraction(ml_mtoks x, const ml_mtok **num, const ml_mtok **den) {
    const ml_mtok *found[2] = { 0 };
    int n = 0;
    bool slash = false, macro = false;

    for (int32_t i = 0; i < x.n; i++) {
        const ml_mtok *t = &x.t[i];
        if (t->kind == ML_T_NUM && n < 2 && !memchr(t->text.ptr, '.', t->text.len))
            found[n++] = t;
        else if (ml_mtok_op(t, "/") && n == 1)
            slash = true;
        else if (ml_mtok_is(t, ML_T_MACRO, "frac") && n == 0)
            macro = true;
        else if (!(ml_mtok_op(t, "-") && n == 0) && t->kind != ML_T_GROUP &&
                 t->kind != ML_T_UNGROUP)
            return false;
    }
    *num = found[0];
    *den = found[1];
    return n == 2 && slash != macro;
}

static bool unreduced(ml_mtoks x, ml_mtoks y) {
    const ml_mtok *a, *b, *c, *d;

    return plain_fraction(x, &a, &b) && plain_fraction(y, &c, &d) &&
           !(ml_str_eq(a->text, c->text) && ml_str_eq(b->text, d->text));
}

/* An exponent of two or more digits, or in brackets. */
static bool heavy_exponent(ml_mtoks x) {
    for (int32_t i = 0; i + 1 < x.n; i++) {
        int32_t at = i + 1 + (x.t[i + 1].kind == ML_T_GROUP);
        if (!ml_mtok_op(&x.t[i], "^") || at >= x.n)
            continue;
        if (ml_mtok_is(&x.t[at], ML_T_OPEN, "(") ||
            (x.t[at].kind == ML_T_NUM && x.t[at].text.len > 1 &&
             !memchr(x.t[at].text.ptr, '.', x.t[at].text.len)))
            return true;
    }
    return false;
}

/* The distinct letters of symbols as a bit set; a Greek name counts as one letter. */
static uint64_t letters_of(ml_mtoks x) {
    uint64_t set = 0;

    for (int32_t i = 0; i < x.n; i++) {
        ml_str s = x.t[i].text;
        if (x.t[i].kind == ML_T_MACRO && !ml_math_is_function(s) && !ml_str_is(s, "frac") &&
            !ml_str_is(s, "infty") && !ml_str_is(s, "binom"))
            set |= (uint64_t)1 << (32 + (unsigned char)s.ptr[0] % 32);
        if (x.t[i].kind != ML_T_WORD || ml_math_is_function(s))
            continue;
        for (size_t k = 0; k < s.len; k++)
            set |= (uint64_t)1 << (s.ptr[k] - 'a');
    }
    return set;
}

static bool many_letters(ml_mtoks x, ml_mtoks y) {
    int n = 0;

    for (uint64_t set = letters_of(x) | letters_of(y); set; set &= set - 1)
        n++;
    return n > 2;
}

/* True if it has a word such as "million". */
static bool has_magnitude(ml_mtoks x) {
    for (int32_t i = 0; i < x.n; i++)
        if (x.t[i].magnitude)
            return true;
    return false;
}

static bool refused(ml_mcompare *c, ml_mtoks x, ml_mtoks y) {
    if (has_magnitude(x) || has_magnitude(y))
        return many_letters(x, y);
    return whole_against_sum(c, x, y) || unreduced(x, y) || heavy_exponent(x) ||
           heavy_exponent(y) || many_letters(x, y);
}

/* --- values ------------------------------------------------------------------- */

/* Only letters, and not the usual names of variables: words do not commute. */
static bool is_words(ml_mtoks x) {
    bool variables = true;

    for (int32_t i = 0; i < x.n; i++) {
        ml_str s = x.t[i].text;
        if (x.t[i].kind != ML_T_WORD || ml_math_is_function(s))
            return false;
        for (size_t k = 0; k < s.len; k++)
            variables = variables && strchr("abckmnpqrstuvwxyz", s.ptr[k]);
        variables = variables && !x.t[i].in_text && !x.t[i].capitals;
    }
    return x.n > 0 && !variables;
}

bool ml_value_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y) {
    ml_algebra a = { .work = { c->arena, c->work, false } };
    ml_ratfun v, w;
    bool same;

    if (ml_mtoks_same_text(x, y))
        return true;
    if ((is_words(x) && is_words(y)) || (c->strict && refused(c, x, y)))
        return false;
    same = ml_math_parse(&v, &a, x) && ml_math_parse(&w, &a, y) && ml_ratfun_eq(&a, v, w) &&
           !a.work.spent;
    c->work = a.work.left;
    return same;
}
