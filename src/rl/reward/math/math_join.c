/* Merges tokens that have one meaning together. */
#include "rl/reward/math/math_lexer.h"

#include <string.h>

/* 1st, 2nd, 3rd, 4th: is the word the ordinal suffix of this number? */
static bool is_ordinal(const ml_mtok *number, const ml_mtok *word) {
    char last = number->text.len ? number->text.ptr[number->text.len - 1] : 0;

    if (number->kind != ML_T_NUM || word->kind != ML_T_WORD)
        return false;
    return ml_str_is(word->text, last == '1'   ? "st"
                                 : last == '2' ? "nd"
                                 : last == '3' ? "rd"
                                               : "th");
}

static bool is_degree(const ml_mtok *t) {
    return ml_mtok_op(t, "deg") || ml_mtok_op(t, "circ") || ml_mtok_is(t, ML_T_WORD, "o");
}

/* A degree sign is written ^\circ, ^{\circ} or ^o: one token for all.  5^{th} is 5th. */
static void join_degrees(ml_mtoks *all, ml_mtok *t) {
    int32_t kept = 0;

    for (int32_t i = 0; i < all->n; i++) {
        bool raised = ml_mtok_op(&t[i], "^");
        bool group = raised && i + 1 < all->n && t[i + 1].kind == ML_T_GROUP;
        int32_t at = i + 1 + group;
        bool known = raised && at < all->n &&
                     (is_degree(&t[at]) || (kept > 0 && is_ordinal(&t[kept - 1], &t[at])));
        if (known && (!group || (at + 1 < all->n && t[at + 1].kind == ML_T_UNGROUP))) {
            bool degree = is_degree(&t[at]);
            t[kept++] =
                degree
                    ? (ml_mtok){ .kind = ML_T_OP, .text = ml_str_of("deg") }
                    : (ml_mtok){ .kind = ML_T_WORD, .text = t[at].text, .in_text = true };
            i = at + group;
            continue;
        }
        t[kept] = t[i];
        if (ml_mtok_op(&t[i], "circ") && kept > 0 && t[kept - 1].kind == ML_T_NUM)
            t[kept].text = ml_str_of("deg"); /* 45\circ, a typo */
        kept++;
    }
    all->n = kept;
}

/* True if digits or braces after this token begin a new operand. */
static bool is_free(const ml_mtok *t, int32_t i) {
    const ml_mtok *before = t + i - 1;

    return i == 0 || before->kind == ML_T_OPEN || before->kind == ML_T_GROUP ||
           before->kind == ML_T_WORD ||
           (before->kind == ML_T_OP && !ml_mtok_op(before, "^") &&
            !ml_mtok_op(before, "_"));
}

static bool is_number_group(ml_mtoks all, int32_t i) {
    return i + 2 < all.n && all.t[i].kind == ML_T_GROUP && all.t[i + 1].kind == ML_T_NUM &&
           all.t[i + 2].kind == ML_T_UNGROUP;
}

static bool is_plain_number(const ml_mtok *t) {
    return t->kind == ML_T_NUM && !t->repeat.len && !t->magnitude &&
           !memchr(t->text.ptr, 'e', t->text.len);
}

/* 4{2}, {4}2 and {4}{2} are typeset as 42. */
static void join_digits(ml_mtoks *all, ml_mtok *t, ml_arena *a) {
    int32_t kept = 0;

    for (int32_t i = 0; i < all->n; i++) {
        bool group = is_number_group(*all, i) && is_free(t, kept);
        t[kept] = t[i + group];
        t[kept].spaced = t[i].spaced;
        i += 2 * group;
        if (!is_plain_number(&t[kept]) || !is_free(t, kept)) {
            kept++;
            continue;
        }
        for (;;) {
            bool braced = is_number_group(*all, i + 1);
            const ml_mtok *next = &t[i + 1 + braced];
            if (i + 1 >= all->n || t[i + 1].spaced || (!braced && !group) ||
                !is_plain_number(next) || memchr(next->text.ptr, '.', next->text.len))
                break;
            t[kept].text = ml_str_of(ml_arena_printf(a, "%.*s%.*s", (int)t[kept].text.len,
                                                     t[kept].text.ptr, (int)next->text.len,
                                                     next->text.ptr));
            i += braced ? 3 : 1;
            group = braced;
        }
        kept++;
    }
    all->n = kept;
}

static int32_t closes_at(ml_mtoks all, int32_t i) {
    int depth = 0;

    for (; i < all.n; i++) {
        depth += ml_mtok_nests(&all.t[i]);
        if (depth == 0)
            return i;
    }
    return all.n;
}

/* Brackets around a matrix belong to it; bars make it a determinant. */
static void join_matrices(ml_mtoks *all, ml_mtok *t) {
    int32_t kept = 0, end = -1;

    for (int32_t i = 0; i < all->n; i++) {
        int32_t close = i + 1 < all->n && ml_mtok_is(&t[i + 1], ML_T_OPEN, "matrix")
                            ? closes_at(*all, i + 1)
                            : all->n;
        bool bar = ml_mtok_op(&t[i], "|");
        if (close < all->n && ml_mtok_is(&t[i], ML_T_OPEN, "{") &&
            (close + 1 == all->n || t[close + 1].kind != ML_T_CLOSE)) {
            /* one brace before a system of equations */
            t[i + 1].text = t[close].text = ml_str_of("cases");
            continue;
        }
        if (close + 1 < all->n && end < 0 &&
            (bar ? ml_mtok_op(&t[close + 1], "|")
                 : (t[i].kind == ML_T_OPEN && t[close + 1].kind == ML_T_CLOSE))) {
            if (bar)
                t[i + 1].text = t[close].text = ml_str_of("vmatrix");
            end = close + 1;
        } else if (i == end)
            end = -1;
        else
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

void ml_lexer_join(ml_mtoks *all, ml_mtok *t, ml_arena *a) {
    join_digits(all, t, a);
    join_matrices(all, t);
    join_degrees(all, t);
    join_angles(all, t);
}
