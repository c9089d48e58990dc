#include "rl/reward/math/math_unit.h"

#include <string.h>

#include "rl/reward/math/math_macros.h"
#include "rl/reward/math/math_parse.h"

#define UNIT_MAX 12

/* A value and the name of its unit, which has one canonical form: \$5 and 5 dollars have
 * "$", 5 cm^{2} and 5 square centimeters have "cm", "^", "2". */
typedef struct quantity {
    ml_mtoks value;
    ml_str unit[UNIT_MAX];
    int32_t n_unit;
    bool strange; /* several currencies, a unit that is too long, or not a unit */
} quantity;

/* --- finding the unit --------------------------------------------------------- */

/* Abbreviations that may follow a number without a space, or are one letter. */
static const char *const short_units[] = {
    "m",   "s",   "g",  "h",   "l",   "km",  "cm",  "mm",  "kg",  "mg",  "ft", "in",
    "lb",  "lbs", "oz", "ml",  "mph", "kph", "hr",  "hrs", "min", "sec", "yd", "mi",
    "kwh", "usd", "am", "pm",  "gm",  "gms", "kgs", "cms", "kms", "cc",  "hz", "khz",
    "mhz", "kj",  "kw", "kpa", "eur", "gbp", "deg", "sq",  "th",  "st",  "nd", "rd"
};

static bool is_short_unit(ml_str s) {
    for (size_t i = 0; i < sizeof short_units / sizeof *short_units; i++)
        if (ml_str_is(s, short_units[i]))
            return true;
    return false;
}

/* The letter of a temperature scale after a degree sign: 25 °C. */
static bool is_scale(ml_mtoks x, int32_t i) {
    const ml_mtok *t = &x.t[i];

    return i > 0 && t->kind == ML_T_WORD && t->text.len == 1 &&
           strchr("cfk", t->text.ptr[0]) && ml_mtok_op(t - 1, "deg");
}

static bool is_unit_word(const ml_mtok *t) {
    if (t->kind != ML_T_WORD || t->in_text)
        return t->kind == ML_T_WORD;
    if (ml_str_is(t->text, "pi") || ml_math_is_function(t->text))
        return false;
    return is_short_unit(t->text) || t->text.len > 3 || (t->spaced && t->text.len > 2);
}

/* Index of the unit at the end of a quantity; x.n if there is none. */
static int32_t unit_from(ml_mtoks x) {
    int32_t i = x.n;

    while (i > 0) {
        const ml_mtok *t = &x.t[i - 1];
        bool per = ml_mtok_op(t, "/") && i < x.n && i >= 2 && is_unit_word(t - 1);
        if (is_unit_word(t) || is_scale(x, i - 1) || ml_mtok_op(t, "%") ||
            ml_mtok_op(t, "deg") || ml_mtok_is_money(t) || per)
            i--;
        else if (i >= 3 && t->kind == ML_T_NUM && ml_mtok_op(t - 1, "^") &&
                 is_unit_word(t - 2))
            i -= 3;
        else if (i >= 5 && t->kind == ML_T_UNGROUP && t[-1].kind == ML_T_NUM &&
                 t[-2].kind == ML_T_GROUP && ml_mtok_op(t - 3, "^") && is_unit_word(t - 4))
            i -= 5;
        else
            break;
    }
    return i;
}

/* --- canonical unit names ----------------------------------------------------- */

static ml_str unit_name(ml_str s) {
    static const struct {
        const char *word, *is;
    } rows[] = { { "feet", "ft" },       { "foot", "ft" },       { "centimeter", "cm" },
                 { "centimetre", "cm" }, { "meter", "m" },       { "metre", "m" },
                 { "kilometer", "km" },  { "kilometre", "km" },  { "millimeter", "mm" },
                 { "millimetre", "mm" }, { "inche", "in" },      { "inch", "in" },
                 { "kilogram", "kg" },   { "gram", "g" },        { "gm", "g" },
                 { "second", "s" },      { "sec", "s" },         { "minute", "min" },
                 { "hour", "h" },        { "hr", "h" },          { "liter", "l" },
                 { "litre", "l" },       { "milliliter", "ml" }, { "pound", "lb" },
                 { "mile", "mi" },       { "yard", "yd" },       { "degree", "deg" },
                 { "percent", "%" },     { "dollar", "$" },      { "usd", "$" },
                 { "euro", "€" },        { "eur", "€" },         { "gbp", "£" },
                 { "yen", "¥" },         { "rupee", "₹" },       { "cent", "¢" },
                 { "pennie", "¢" },      { "penny", "¢" },       { "per", "/" } };

    if (s.len > 2 && s.ptr[s.len - 1] == 's')
        s.len--;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ml_str_is(s, rows[i].word))
            return ml_str_of(rows[i].is);
    return s;
}

static void add_unit(quantity *q, ml_str name) {
    if (q->n_unit && ml_str_eq(q->unit[q->n_unit - 1], name))
        return; /* \$5 dollars */
    if (q->n_unit == UNIT_MAX)
        q->strange = true;
    else
        q->unit[q->n_unit++] = name;
}

/* Adds the name of a unit; expands speeds that are one word. */
static void add_name(quantity *q, ml_str name) {
    bool miles = ml_str_is(name, "mph");

    if (!miles && !ml_str_is(name, "kph") && !ml_str_is(name, "kmh")) {
        add_unit(q, name);
        return;
    }
    add_unit(q, ml_str_of(miles ? "mi" : "km"));
    add_unit(q, ml_str_of("/"));
    add_unit(q, ml_str_of("h"));
}

/* The exponent that a word denotes; NULL: none. */
static const char *power_of(ml_str s) {
    if (ml_str_is(s, "square") || ml_str_is(s, "sq") || ml_str_is(s, "squared"))
        return "2";
    return ml_str_is(s, "cubic") || ml_str_is(s, "cubed") ? "3" : NULL;
}

/* Adds the tokens of a unit; "square" before a length and "squared" after it are
 * exponents. */
static void add_units(quantity *q, ml_mtoks unit) {
    const char *power = NULL;

    for (int32_t i = 0; i < unit.n; i++) {
        ml_str s = unit.t[i].text;
        const char *own = power_of(s);
        bool after = own && s.ptr[s.len - 1] == 'd' && q->n_unit;
        if (ml_mtok_nests(&unit.t[i]))
            continue;
        if (ml_str_is(s, "per") && i + 1 < unit.n &&
            ml_str_is(unit.t[i + 1].text, "cent")) {
            add_unit(q, ml_str_of("%"));
            i++;
            continue;
        }
        if (own && !after && i + 1 < unit.n) {
            power = own;
            continue;
        }
        if (!after)
            add_name(q, unit_name(s));
        power = after ? own : power;
        if (power) {
            add_unit(q, ml_str_of("^"));
            add_unit(q, ml_str_of(power));
            power = NULL;
        }
    }
}

/* Removes the currency signs of x, which become the unit. */
static ml_mtoks without_money(ml_mcompare *c, quantity *q, ml_mtoks x) {
    ml_mtok *t = ML_NEW(c->arena, ml_mtok, x.n + 1);
    int32_t n = 0;

    for (int32_t i = 0; i < x.n; i++) {
        if (!ml_mtok_is_money(&x.t[i])) {
            t[n++] = x.t[i];
            continue;
        }
        add_unit(q, x.t[i].text);
        q->strange = q->strange || q->n_unit > 1;
    }
    return (ml_mtoks){ t, n };
}

/* A word after a number that is not a unit but changes the number. */
static bool changes_number(const ml_mtok *t) {
    static const char *const words[] = { "squared", "cubed",   "factorial",
                                         "half",    "halves",  "third",
                                         "thirds",  "fourths", "fifth",
                                         "fifths",  "sixths",  "sevenths",
                                         "eighths", "ninths",  0 };

    for (const char *const *w = words; *w; w++)
        if (ml_mtok_is(t, ML_T_WORD, *w))
            return true;
    return false;
}

static void init_quantity(quantity *q, ml_mcompare *c, ml_mtoks x) {
    int32_t u = unit_from(x);
    bool money = false;

    *q = (quantity){ .value = ml_mtoks_part(x, 0, u) };
    for (int32_t i = 0; i < u; i++)
        money = money || ml_mtok_is_money(&x.t[i]);
    if (money)
        q->value = without_money(c, q, q->value);
    add_units(q, ml_mtoks_part(x, u, x.n));
    q->strange = q->strange || (u < x.n && changes_number(&x.t[u]));
}

/* --- comparing ---------------------------------------------------------------- */

static bool is_unit(const quantity *q, const char *name) {
    return q->n_unit == 1 && ml_str_is(q->unit[0], name);
}

static bool same_unit(const quantity *x, const quantity *y) {
    if (x->n_unit != y->n_unit || x->strange || y->strange)
        return false;
    if ((is_unit(x, "£") && is_unit(y, "lb")) || (is_unit(x, "lb") && is_unit(y, "£")))
        return true;
    for (int32_t i = 0; i < x->n_unit; i++)
        if (!ml_str_eq(x->unit[i], y->unit[i]))
            return false;
    return true;
}

/* x times scale equals y; scale is the text of an expression. */
static bool scaled_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y, const char *scale) {
    ml_algebra a = { .work = { c->arena, c->work, false } };
    ml_mtoks factor;
    ml_ratfun v, w, f;
    bool same = ml_math_lex(&factor, c->arena, ml_str_of(scale)) &&
                ml_math_parse(&v, &a, x) && ml_math_parse(&w, &a, y) &&
                ml_math_parse(&f, &a, factor) &&
                ml_ratfun_eq(&a, ml_ratfun_mul(&a, v, f), w) && !a.work.spent;

    c->work = a.work.left;
    return same;
}

/* Compares a quantity with a number without unit. */
static bool same_without_unit(ml_mcompare *c, const quantity *q, ml_mtoks number) {
    if (q->strange)
        return false;
    if (ml_value_same(c, q->value, number))
        return true;
    if (is_unit(q, "%"))
        return scaled_same(c, q->value, number, "1/100");
    return is_unit(q, "deg") && scaled_same(c, q->value, number, "pi/180");
}

/* A unit must follow something with a digit in it, not just a name. */
static bool has_number(ml_mtoks x) {
    for (int32_t i = 0; i < x.n; i++)
        if (x.t[i].kind == ML_T_NUM)
            return true;
    return false;
}

bool ml_quantity_same(ml_mcompare *c, ml_mtoks x, ml_mtoks y) {
    quantity p, q;

    if (ml_value_same(c, x, y))
        return true;
    init_quantity(&p, c, x);
    init_quantity(&q, c, y);
    if ((p.n_unit && !has_number(p.value)) || (q.n_unit && !has_number(q.value)))
        return false;
    if (is_unit(&p, "¢") && is_unit(&q, "$"))
        return scaled_same(c, p.value, q.value, "1/100");
    if (is_unit(&p, "$") && is_unit(&q, "¢"))
        return scaled_same(c, q.value, p.value, "1/100");
    if (p.n_unit && q.n_unit)
        return same_unit(&p, &q) && ml_value_same(c, p.value, q.value);
    if (p.n_unit)
        return same_without_unit(c, &p, y);
    return q.n_unit && same_without_unit(c, &q, x);
}
