#include "rl/reward/math/math_same.h"

#include <string.h>

#include "rl/reward/math/math_macros.h"
#include "rl/reward/math/math_unit.h"

#define WORK_MAX 2000000 /* about 10 ms */
#define DEPTH_MAX 6
#define ITEM_MAX 40

static bool same(ml_mcompare *c, ml_mtoks x, ml_mtoks y, int depth);

/* --- views -------------------------------------------------------------------- */

/* The first token from i on, at the outermost level, for which `is` holds; x.n if there is
 * none. */
static int32_t find_outer(ml_mtoks x, int32_t i, bool (*is)(const ml_mtok *)) {
    int depth = 0;

    for (; i < x.n; i++) {
        if (depth == 0 && is(&x.t[i]))
            return i;
        depth += ml_mtok_nests(&x.t[i]);
    }
    return x.n;
}

static bool is_comma(const ml_mtok *t) {
    return ml_mtok_op(t, ",") || ml_mtok_is(t, ML_T_OTHER, ";");
}

static bool is_separator(const ml_mtok *t) {
    return is_comma(t) || ml_mtok_op(t, "and") || ml_mtok_op(t, "or");
}

static bool is_union(const ml_mtok *t) {
    return ml_mtok_op(t, "cup");
}

static bool is_one_of(const ml_mtok *t, const char *const *ops) {
    for (; *ops; ops++)
        if (ml_mtok_op(t, *ops))
            return true;
    return false;
}

/* Symmetric relations. */
static bool is_mutual(const ml_mtok *t) {
    static const char *const ops[] = { "!=",   "approx",   "equiv", "cong", "sim",
                                       "perp", "parallel", "iff",   0 };
    return is_one_of(t, ops);
}

static bool is_directed(const ml_mtok *t) {
    static const char *const ops[] = { "to",       "gets",   "mapsto",   "implies",
                                       "propto",   "subset", "subseteq", "supset",
                                       "supseteq", "notin",  0 };
    return is_one_of(t, ops);
}

static bool is_relation(const ml_mtok *t) {
    static const char *const ops[] = { "=", "<", ">", "<=", ">=", "in", 0 };

    return is_one_of(t, ops) || is_mutual(t) || is_directed(t);
}

static bool is_either_sign(const ml_mtok *t) {
    return ml_mtok_op(t, "+-");
}

/* True if these two tokens are brackets that only group. */
static bool is_idle_pair(const ml_mtok *open, const ml_mtok *close) {
    return (open->kind == ML_T_GROUP && close->kind == ML_T_UNGROUP) ||
           (ml_mtok_is(open, ML_T_OPEN, "(") && ml_mtok_is(close, ML_T_CLOSE, ")"));
}

/* Removes the brackets around all of x, in one pass: as many as open at the front, close
 * at the back and stay open in between.  The brackets of a list are kept. */
static ml_mtoks without_brackets(ml_mtoks x) {
    int32_t front = 0, back = 0, depth = 0, low, k = 0;

    while (front < x.n && ml_mtok_nests(&x.t[front]) > 0)
        front++;
    while (back < x.n - front && ml_mtok_nests(&x.t[x.n - 1 - back]) < 0)
        back++;
    low = front < back ? front : back;
    for (int32_t i = 0; i < x.n - back; i++) {
        depth += ml_mtok_nests(&x.t[i]);
        if (i >= front && depth < low)
            low = depth;
    }
    if (depth != back) /* unbalanced */
        return x;
    while (k < low && is_idle_pair(&x.t[k], &x.t[x.n - 1 - k]))
        k++;
    x = ml_mtoks_part(x, k, x.n - k);
    if (k > 0 && find_outer(x, 0, is_comma) < x.n)
        x = (ml_mtoks){ x.t - 1, x.n + 2 };
    return x;
}

static bool is_last_word(const ml_mtok *t) {
    return is_separator(t) || ml_mtok_is(t, ML_T_OTHER, ".") || ml_mtok_op(t, "row");
}

/* Charges the work budget for examining tokens. */
static bool afford(ml_mcompare *c, int32_t n_token) {
    c->work -= n_token + 16;
    return c->work > 0;
}

/* Removes enclosing brackets and trailing separators. */
static ml_mtoks bare(ml_mcompare *c, ml_mtoks x) {
    for (int32_t before = -1; before != x.n && afford(c, x.n);) {
        before = x.n;
        while (x.n > 1 && is_last_word(&x.t[x.n - 1]))
            x.n--;
        x = without_brackets(x);
    }
    return x;
}

/* --- lists -------------------------------------------------------------------- */

typedef struct item_list {
    int32_t n;
    ml_mtoks item[ITEM_MAX];
    bool has_and, has_or, too_many;
} item_list;

static void split(item_list *out, ml_mtoks x, bool (*is)(const ml_mtok *)) {
    int32_t from = 0;

    out->n = 0;
    out->has_and = out->has_or = out->too_many = false;
    if (x.n == 0)
        return;
    for (;;) {
        int32_t to = find_outer(x, from, is);
        if (out->n == ITEM_MAX) {
            out->too_many = true;
            return;
        }
        /* "1, 2, and 3" has no item between the comma and "and". */
        if (to > from || is != is_separator)
            out->item[out->n++] = ml_mtoks_part(x, from, to);
        if (to == x.n)
            return;
        out->has_and = out->has_and || ml_mtok_op(&x.t[to], "and");
        out->has_or = out->has_or || ml_mtok_op(&x.t[to], "or");
        from = to + 1;
    }
}

static bool same_ordered(ml_mcompare *c, const item_list *x, const item_list *y,
                         int depth) {
    if (x->n != y->n || x->too_many || y->too_many)
        return false;
    for (int32_t i = 0; i < x->n; i++)
        if (!same(c, x->item[i], y->item[i], depth))
            return false;
    return true;
}

static bool same_unordered(ml_mcompare *c, const item_list *x, const item_list *y,
                           int depth) {
    bool used[ITEM_MAX] = { false };

    if (x->n != y->n || x->too_many || y->too_many)
        return false;
    for (int32_t i = 0; i < x->n; i++) {
        int32_t j = 0;
        while (j < y->n && (used[j] || !same(c, x->item[i], y->item[j], depth)))
            j++;
        if (j == y->n)
            return false;
        used[j] = true;
    }
    return true;
}

/* x with its +- replaced by one of the signs. */
static ml_mtoks with_sign(ml_mcompare *c, ml_mtoks x, const char *sign) {
    ml_mtok *t = ML_NEW(c->arena, ml_mtok, x.n);
    int32_t n = 0;

    for (int32_t i = 0; i < x.n; i++) {
        bool either = is_either_sign(&x.t[i]);
        if (either && n == 0 && strcmp(sign, "+") == 0)
            continue;
        t[n] = x.t[i];
        if (either)
            t[n].text = ml_str_of(sign);
        n++;
    }
    return (ml_mtoks){ t, n };
}

/* The elements of an answer that is a list, or has a +-. */
static void split_answers(item_list *out, ml_mcompare *c, ml_mtoks x) {
    split(out, x, is_separator);
    if (out->n == 1 && find_outer(x, 0, is_either_sign) < x.n) {
        out->item[0] = with_sign(c, x, "+");
        out->item[1] = with_sign(c, x, "-");
        out->n = 2;
    }
}

/* --- brackets ----------------------------------------------------------------- */

typedef struct bracketed {
    ml_str open, close;
    ml_mtoks inside;
} bracketed;

static bool in_brackets(bracketed *out, ml_mtoks x) {
    int depth = 0;

    if (x.n < 2 || ml_mtok_nests(&x.t[0]) <= 0)
        return false;
    for (int32_t i = 0; i < x.n; i++) {
        depth += ml_mtok_nests(&x.t[i]);
        if (depth == 0 && i < x.n - 1)
            return false;
    }
    if (depth != 0)
        return false;
    *out = (bracketed){ x.t[0].text, x.t[x.n - 1].text, ml_mtoks_part(x, 1, x.n - 1) };
    return true;
}

static bool is_row(const ml_mtok *t) {
    return ml_mtok_op(t, "row");
}

static bool is_cell(const ml_mtok *t) {
    return ml_mtok_op(t, "&");
}

static bool same_matrix(ml_mcompare *c, ml_mtoks x, ml_mtoks y, int depth) {
    item_list a, b, s, t;

    split(&a, x, is_row);
    split(&b, y, is_row);
    if (a.n != b.n || a.too_many || b.too_many)
        return false;
    for (int32_t i = 0; i < a.n; i++) {
        split(&s, a.item[i], is_cell);
        split(&t, b.item[i], is_cell);
        if (!same_ordered(c, &s, &t, depth))
            return false;
    }
    return true;
}

static bool same_brackets(ml_mcompare *c, const bracketed *x, const bracketed *y,
                          int depth) {
    item_list a, b;

    if (!ml_str_eq(x->open, y->open) || !ml_str_eq(x->close, y->close))
        return false;
    if (x->open.len > 1)
        return same_matrix(c, x->inside, y->inside, depth);
    split(&a, x->inside, is_comma);
    split(&b, y->inside, is_comma);
    return ml_str_is(x->open, "{") ? same_unordered(c, &a, &b, depth)
                                   : same_ordered(c, &a, &b, depth);
}

static bool is_empty_set(ml_mtoks x) {
    return (x.n == 1 && ml_mtok_is(x.t, ML_T_MACRO, "emptyset")) ||
           (x.n == 2 && ml_mtok_is(x.t, ML_T_OPEN, "{") &&
            ml_mtok_is(x.t + 1, ML_T_CLOSE, "}"));
}

/* --- equations and inequalities ----------------------------------------------- */

/* A name: x, \theta, f(x), area. */
static bool is_name(ml_mtoks x) {
    if (x.n == 0 || (x.t[0].kind != ML_T_WORD && x.t[0].kind != ML_T_MACRO) ||
        ml_mtok_is(x.t, ML_T_MACRO, "frac") || ml_mtok_is(x.t, ML_T_WORD, "pi") ||
        ml_mtok_is(x.t, ML_T_MACRO, "infty") || ml_math_is_function(x.t[0].text))
        return false;
    if (x.n == 1)
        return true;
    return ml_mtok_is(&x.t[1], ML_T_OPEN, "(") || (x.t[1].kind == ML_T_WORD && x.n == 2) ||
           ml_mtok_op(&x.t[1], "_");
}

/* The side of an equation that is the answer: the last that is not just a name. */
static ml_mtoks answer_side(const item_list *sides) {
    for (int32_t i = sides->n - 1; i >= 0; i--)
        if (!is_name(sides->item[i]))
            return sides->item[i];
    return sides->item[sides->n - 1];
}

static bool is_equals(const ml_mtok *t) {
    return ml_mtok_op(t, "=");
}

static bool same_equations(ml_mcompare *c, const item_list *x, const item_list *y,
                           int depth) {
    if (x->n == 2 && y->n == 2 && same(c, x->item[0], y->item[1], depth) &&
        same(c, x->item[1], y->item[0], depth))
        return true;
    return same_ordered(c, x, y, depth);
}

typedef struct interval {
    ml_mtoks name, low, high; /* name: of the variable; n = 0: none */
    bool low_in, high_in;
} interval;

static const ml_mtok infinite[] = { { .kind = ML_T_OP, .text = { "-", 1 } },
                                    { .kind = ML_T_MACRO, .text = { "infty", 5 } } };

static void bound(interval *v, const ml_mtok *op, ml_mtoks limit, bool limit_left) {
    bool in = op->text.len == 2, less = op->text.ptr[0] == '<';

    if (less == limit_left) {
        v->low = limit;
        v->low_in = in;
    } else {
        v->high = limit;
        v->high_in = in;
    }
}

static bool bracket_interval(interval *out, ml_mtoks x) {
    bracketed b;
    item_list ends;

    if (!in_brackets(&b, x) || b.open.len > 1 || ml_str_is(b.open, "{") ||
        ml_str_is(b.open, "<"))
        return false;
    split(&ends, b.inside, is_comma);
    if (ends.n != 2)
        return false;
    *out = (interval){ .low = ends.item[0],
                       .high = ends.item[1],
                       .low_in = ml_str_is(b.open, "["),
                       .high_in = ml_str_is(b.close, "]") };
    return true;
}

/* x >= 2, 2 <= x < 5, x in [2, 5). */
static bool relation_interval(interval *out, ml_mtoks x) {
    int32_t i = find_outer(x, 0, is_relation), j;
    ml_mtoks left = ml_mtoks_part(x, 0, i), middle;

    if (i == x.n || ml_mtok_op(&x.t[i], "=") || is_mutual(&x.t[i]) || is_directed(&x.t[i]))
        return false;
    if (ml_mtok_op(&x.t[i], "in")) {
        bool known = bracket_interval(out, ml_mtoks_part(x, i + 1, x.n));
        out->name = left;
        return known;
    }
    j = find_outer(x, i + 1, is_relation);
    middle = ml_mtoks_part(x, i + 1, j);
    *out = (interval){ .low = { infinite, 2 }, .high = { infinite + 1, 1 } };
    if (j < x.n) {
        out->name = middle;
        bound(out, &x.t[i], left, true);
        bound(out, &x.t[j], ml_mtoks_part(x, j + 1, x.n), false);
        return is_name(middle) && x.t[i].text.ptr[0] == x.t[j].text.ptr[0] &&
               find_outer(x, j + 1, is_relation) == x.n && strchr("<>", x.t[j].text.ptr[0]);
    }
    out->name = is_name(left) ? left : middle;
    bound(out, &x.t[i], is_name(left) ? middle : left, !is_name(left));
    return is_name(out->name) && left.n > 0 && middle.n > 0;
}

static bool same_interval(ml_mcompare *c, const interval *x, const interval *y, int depth) {
    if (x->low_in != y->low_in || x->high_in != y->high_in ||
        (x->name.n && y->name.n && !ml_mtoks_same_text(x->name, y->name)))
        return false;
    return same(c, x->low, y->low, depth) && same(c, x->high, y->high, depth);
}

/* The same relation, at i and j, between equal sides. */
static bool same_sides(ml_mcompare *c, ml_mtoks x, int32_t i, ml_mtoks y, int32_t j,
                       int depth) {
    ml_mtoks a = ml_mtoks_part(x, 0, i), b = ml_mtoks_part(x, i + 1, x.n);
    ml_mtoks p = ml_mtoks_part(y, 0, j), q = ml_mtoks_part(y, j + 1, y.n);

    if (!ml_str_eq(x.t[i].text, y.t[j].text))
        return false;
    return (same(c, a, p, depth) && same(c, b, q, depth)) ||
           (is_mutual(&x.t[i]) && same(c, a, q, depth) && same(c, b, p, depth));
}

/* The value of an approximate answer: x \approx 5, \approx 5. */
static bool about(ml_mtoks *x, int32_t i) {
    if (i == x->n || !ml_mtok_op(&x->t[i], "approx") ||
        !(i == 0 || is_name(ml_mtoks_part(*x, 0, i))))
        return false;
    *x = ml_mtoks_part(*x, i + 1, x->n);
    return true;
}

/* Compares pairs of which at least one has a relation. */
static bool same_relations(ml_mcompare *c, ml_mtoks x, ml_mtoks y, int depth) {
    item_list a, b;
    interval v, w;
    int32_t i = find_outer(x, 0, is_relation), j = find_outer(y, 0, is_relation);

    if (relation_interval(&v, x) ? relation_interval(&w, y) || bracket_interval(&w, y)
                                 : relation_interval(&w, y) && bracket_interval(&v, x))
        return same_interval(c, &v, &w, depth);
    if (i < x.n && j < y.n && (is_mutual(&x.t[i]) || is_directed(&x.t[i])))
        return same_sides(c, x, i, y, j, depth);
    if (j == y.n ? about(&x, i) : i == x.n && about(&y, j))
        return same(c, x, y, depth);
    if (i < x.n && j == y.n && ml_mtok_op(&x.t[i], "in"))
        return same(c, ml_mtoks_part(x, i + 1, x.n), y, depth);
    if (j < y.n && i == x.n && ml_mtok_op(&y.t[j], "in"))
        return same(c, x, ml_mtoks_part(y, j + 1, y.n), depth);
    split(&a, x, is_equals);
    split(&b, y, is_equals);
    if (a.n > 1 && b.n > 1)
        return same_equations(c, &a, &b, depth);
    if (a.n > 1 && j == y.n)
        return same(c, answer_side(&a), y, depth);
    return b.n > 1 && i == x.n && same(c, x, answer_side(&b), depth);
}

/* --- all kinds of answers ----------------------------------------------------- */

/* "(D) 24": the letter of a choice and its value; either matches. */
static bool same_choice(ml_mcompare *c, ml_mtoks x, ml_mtoks choice, int depth) {
    return choice.n > 3 && ml_mtok_is(&choice.t[0], ML_T_OPEN, "(") &&
           choice.t[1].kind == ML_T_WORD && choice.t[1].text.len == 1 &&
           choice.t[1].in_text && ml_mtok_is(&choice.t[2], ML_T_CLOSE, ")") &&
           (same(c, x, ml_mtoks_part(choice, 1, 2), depth) ||
            same(c, x, ml_mtoks_part(choice, 3, choice.n), depth));
}

/* 3:4 as 3/4. */
static bool same_ratio(ml_mcompare *c, ml_mtoks x, ml_mtoks ratio) {
    ml_mtok quotient[3];

    if (ratio.n != 3 || !ml_mtok_op(&ratio.t[1], ":") || ratio.t[0].kind != ML_T_NUM ||
        ratio.t[2].kind != ML_T_NUM)
        return false;
    memcpy(quotient, ratio.t, sizeof quotient);
    quotient[1].text = ml_str_of("/");
    return ml_value_same(c, x, (ml_mtoks){ quotient, 3 });
}

static bool same_lists(ml_mcompare *c, const item_list *x, const item_list *y, int depth) {
    if ((x->has_and && y->has_or) || (x->has_or && y->has_and))
        return false;
    return same_unordered(c, x, y, depth);
}

/* x < 2 or x > 3, as a union of intervals. */
static bool same_union(ml_mcompare *c, const item_list *x, ml_mtoks y, int depth) {
    item_list parts;

    split(&parts, y, is_union);
    return x->has_or && parts.n > 1 && same_unordered(c, x, &parts, depth);
}

static bool same_parts(ml_mcompare *c, ml_mtoks x, ml_mtoks y, int depth) {
    item_list a, b;
    bracketed p, q;
    bool in_x, in_y;

    split_answers(&a, c, x);
    split_answers(&b, c, y);
    if (a.n > 1 || b.n > 1)
        return same_lists(c, &a, &b, depth) || same_union(c, &a, y, depth) ||
               same_union(c, &b, x, depth);
    if (find_outer(x, 0, is_relation) < x.n || find_outer(y, 0, is_relation) < y.n)
        return same_relations(c, x, y, depth);
    split(&a, x, is_union);
    split(&b, y, is_union);
    if (a.n > 1 || b.n > 1)
        return same_unordered(c, &a, &b, depth);
    if (is_empty_set(x) || is_empty_set(y))
        return is_empty_set(x) && is_empty_set(y);
    in_x = in_brackets(&p, x);
    in_y = in_brackets(&q, y);
    if (in_x || in_y)
        return in_x && in_y && same_brackets(c, &p, &q, depth);
    return ml_quantity_same(c, x, y) || same_ratio(c, x, y) || same_ratio(c, y, x);
}

static bool same(ml_mcompare *c, ml_mtoks x, ml_mtoks y, int depth) {
    x = bare(c, x);
    y = bare(c, y);
    if (ml_mtoks_same_text(x, y))
        return true;
    if (depth == DEPTH_MAX || x.n == 0 || y.n == 0 || !afford(c, x.n + y.n))
        return false;
    return same_parts(c, x, y, depth + 1) || same_choice(c, x, y, depth + 1) ||
           same_choice(c, y, x, depth + 1);
}

bool ml_math_same(ml_str answer, ml_str label, bool strict) {
    ml_arena arena;
    ml_mcompare c = { .arena = &arena, .work = WORK_MAX, .strict = strict };
    ml_mtoks x, y;
    bool is_same;

    if (ml_str_eq(answer, label))
        return true;
    ml_arena_init(&arena, "grading an answer");
    is_same = ml_math_lex(&x, &arena, answer) && ml_math_lex(&y, &arena, label) &&
              same(&c, x, y, 0);
    ml_arena_release(&arena);
    return is_same;
}
