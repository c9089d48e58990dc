#include "rl/reward/math/ratfun.h"

#include <stdlib.h>
#include <string.h>

#define TERM_MAX 400 /* of a polynomial; larger ones are refused */
#define POWER_MAX 600
#define PRIME_MAX 2000 /* radicands are factored with primes up to here */

/* --- polynomials --------------------------------------------------------------- */

static ml_poly poly_of(ml_algebra *a, ml_big coef) {
    ml_term *t;

    if (coef.n == 0)
        return (ml_poly){ 0 };
    t = ML_NEW(a->work.arena, ml_term, 1);
    t->coef = coef;
    return (ml_poly){ 1, t };
}

static ml_poly one(ml_algebra *a) {
    return poly_of(a, ml_big_of(&a->work, 1));
}

static ml_poly poly_atom(ml_algebra *a, int32_t atom) {
    ml_term *t = ML_NEW(a->work.arena, ml_term, 1);

    t->coef = ml_big_of(&a->work, 1);
    t->exp[atom] = 1;
    return (ml_poly){ 1, t };
}

static int compare_terms(const void *x, const void *y) {
    const ml_term *s = x, *t = y;

    for (int i = 0; i < ML_ATOM_MAX; i++)
        if (s->exp[i] != t->exp[i])
            return s->exp[i] < t->exp[i] ? -1 : 1;
    return 0;
}

/* Sorts term[0 .. n) and combines terms with the same powers. */
static ml_poly collect(ml_algebra *a, ml_term *term, int32_t n) {
    int32_t kept = 0;

    qsort(term, (size_t)n, sizeof *term, compare_terms);
    for (int32_t i = 0; i < n; i++) {
        if (kept > 0 && compare_terms(&term[kept - 1], &term[i]) == 0)
            term[kept - 1].coef = ml_big_add(&a->work, term[kept - 1].coef, term[i].coef);
        else {
            if (kept > 0 && term[kept - 1].coef.n == 0)
                kept--;
            term[kept++] = term[i];
        }
    }
    if (kept > 0 && term[kept - 1].coef.n == 0)
        kept--;
    return (ml_poly){ kept, term };
}

static ml_term *take_terms(ml_algebra *a, int64_t n) {
    if (n > TERM_MAX * TERM_MAX)
        a->work.spent = true;
    if (!ml_work_take(&a->work, 8 * n))
        return NULL;
    return ML_NEW(a->work.arena, ml_term, n + 1);
}

static ml_poly poly_add(ml_algebra *a, ml_poly x, ml_poly y) {
    ml_term *t = take_terms(a, x.n + y.n);

    if (!t)
        return (ml_poly){ 0 };
    if (x.n)
        memcpy(t, x.term, (size_t)x.n * sizeof *t);
    if (y.n)
        memcpy(t + x.n, y.term, (size_t)y.n * sizeof *t);
    return collect(a, t, x.n + y.n);
}

static ml_poly poly_minus(ml_algebra *a, ml_poly x) {
    ml_term *t = take_terms(a, x.n);

    if (!t)
        return (ml_poly){ 0 };
    for (int32_t i = 0; i < x.n; i++) {
        t[i] = x.term[i];
        t[i].coef = ml_big_minus(t[i].coef);
    }
    return (ml_poly){ x.n, t };
}

static bool poly_eq(ml_poly x, ml_poly y) {
    if (x.n != y.n)
        return false;
    for (int32_t i = 0; i < x.n; i++)
        if (compare_terms(&x.term[i], &y.term[i]) != 0 ||
            !ml_big_eq(x.term[i].coef, y.term[i].coef))
            return false;
    return true;
}

static bool is_constant(ml_poly x) {
    static const ml_term no_powers;

    return x.n == 0 || (x.n == 1 && compare_terms(&x.term[0], &no_powers) == 0);
}

static ml_poly poly_mul(ml_algebra *a, ml_poly x, ml_poly y);

/* A root atom whose power in a term is at least its index; -1: none. */
static int32_t full_root(const ml_algebra *a, const ml_term *t) {
    for (int32_t i = 0; i < a->n_atom; i++)
        if (a->atom[i].kind == ML_ATOM_ROOT && t->exp[i] >= a->atom[i].index)
            return i;
    return -1;
}

/* Replaces roots raised to their index by their radicands. */
static ml_poly without_full_roots(ml_algebra *a, ml_poly x) {
    for (int32_t i = 0; i < x.n && !a->work.spent; i++) {
        int32_t root = full_root(a, &x.term[i]);
        ml_term *rest, *lone;
        if (root < 0)
            continue;
        rest = take_terms(a, x.n);
        lone = take_terms(a, 1);
        if (!rest || !lone)
            break;
        memcpy(rest, x.term, (size_t)x.n * sizeof *rest);
        memmove(rest + i, rest + i + 1, (size_t)(x.n - i - 1) * sizeof *rest);
        *lone = x.term[i];
        lone->exp[root] = (int16_t)(lone->exp[root] - a->atom[root].index);
        x = poly_add(a, (ml_poly){ x.n - 1, rest },
                     poly_mul(a, (ml_poly){ 1, lone }, a->atom[root].arg[0].num));
        i = -1;
    }
    return x;
}

static ml_poly poly_mul(ml_algebra *a, ml_poly x, ml_poly y) {
    int64_t n = (int64_t)x.n * y.n;
    ml_term *t = take_terms(a, n);
    ml_poly p;
    int32_t k = 0;

    if (!t)
        return (ml_poly){ 0 };
    for (int32_t i = 0; i < x.n; i++)
        for (int32_t j = 0; j < y.n; j++, k++) {
            t[k].coef = ml_big_mul(&a->work, x.term[i].coef, y.term[j].coef);
            for (int e = 0; e < ML_ATOM_MAX; e++) {
                int sum = x.term[i].exp[e] + y.term[j].exp[e];
                if (sum > 2 * POWER_MAX)
                    a->work.spent = true;
                t[k].exp[e] = (int16_t)sum;
            }
        }
    if (a->work.spent)
        return (ml_poly){ 0 };
    p = collect(a, t, (int32_t)n);
    if (p.n > TERM_MAX)
        a->work.spent = true;
    return without_full_roots(a, p);
}

static ml_poly poly_pow(ml_algebra *a, ml_poly x, int64_t exponent) {
    ml_poly result = one(a);

    for (int64_t i = 0; i < exponent && !a->work.spent; i++)
        result = poly_mul(a, result, x);
    return result;
}

/* --- atoms ------------------------------------------------------------------------ */

static bool same_atom(ml_algebra *a, const ml_atom *x, const ml_atom *y) {
    if (x->kind != y->kind || x->index != y->index || x->n_arg != y->n_arg ||
        !ml_str_eq(x->name, y->name))
        return false;
    for (int32_t i = 0; i < x->n_arg; i++)
        if (!ml_ratfun_eq(a, x->arg[i], y->arg[i]))
            return false;
    return true;
}

static ml_ratfun of_atom(ml_algebra *a, const ml_atom *atom) {
    int32_t i = 0;

    while (i < a->n_atom && !same_atom(a, &a->atom[i], atom))
        i++;
    if (i == ML_ATOM_MAX) {
        a->work.spent = true;
        i = 0;
    } else if (i == a->n_atom)
        a->atom[a->n_atom++] = *atom;
    return (ml_ratfun){ poly_atom(a, i), one(a) };
}

ml_ratfun ml_ratfun_symbol(ml_algebra *a, ml_str name) {
    return of_atom(a, &(ml_atom){ .kind = ML_ATOM_SYMBOL, .name = name });
}

ml_ratfun ml_ratfun_call(ml_algebra *a, ml_str name, const ml_ratfun *arg, int32_t n) {
    ml_atom atom = { .kind = ML_ATOM_CALL, .name = name, .n_arg = n };

    if (n > ML_ATOM_ARGS) {
        a->work.spent = true;
        n = atom.n_arg = 0;
    }
    for (int32_t i = 0; i < n; i++)
        atom.arg[i] = arg[i];
    return of_atom(a, &atom);
}

/* --- quotients ---------------------------------------------------------------------- */

ml_ratfun ml_ratfun_int(ml_algebra *a, ml_big v) {
    return (ml_ratfun){ poly_of(a, v), one(a) };
}

ml_ratfun ml_ratfun_add(ml_algebra *a, ml_ratfun x, ml_ratfun y) {
    if (poly_eq(x.den, y.den))
        return (ml_ratfun){ poly_add(a, x.num, y.num), x.den };
    return (ml_ratfun){ poly_add(a, poly_mul(a, x.num, y.den), poly_mul(a, y.num, x.den)),
                        poly_mul(a, x.den, y.den) };
}

ml_ratfun ml_ratfun_minus(ml_algebra *a, ml_ratfun x) {
    return (ml_ratfun){ poly_minus(a, x.num), x.den };
}

ml_ratfun ml_ratfun_mul(ml_algebra *a, ml_ratfun x, ml_ratfun y) {
    return (ml_ratfun){ poly_mul(a, x.num, y.num), poly_mul(a, x.den, y.den) };
}

ml_ratfun ml_ratfun_div(ml_algebra *a, ml_ratfun x, ml_ratfun y) {
    if (y.num.n == 0) {
        a->work.spent = true;
        return x;
    }
    return (ml_ratfun){ poly_mul(a, x.num, y.den), poly_mul(a, x.den, y.num) };
}

bool ml_ratfun_eq(ml_algebra *a, ml_ratfun x, ml_ratfun y) {
    if (poly_eq(x.den, y.den))
        return poly_eq(x.num, y.num);
    return poly_eq(poly_mul(a, x.num, y.den), poly_mul(a, y.num, x.den)) && !a->work.spent;
}

static bool constant(ml_poly p, int64_t *out) {
    uint64_t size = 0;

    if (!is_constant(p) || (p.n == 1 && !ml_big_u64(p.term[0].coef, &size)) || size >> 62)
        return false;
    *out = p.n == 1 && p.term[0].coef.neg ? -(int64_t)size : (int64_t)size;
    return true;
}

/* A constant quotient of small integers, with a positive denominator. */
static bool small_fraction(ml_ratfun x, int64_t *num, int64_t *den) {
    if (!constant(x.num, num) || !constant(x.den, den) || *den == 0)
        return false;
    if (*den < 0) {
        *num = -*num;
        *den = -*den;
    }
    for (int64_t p = *num < 0 ? -*num : *num, q = *den;;) { /* Euclid's algorithm */
        int64_t r = p ? q % p : 0;
        if (p == 0 || r == 0) {
            int64_t g = p == 0 ? q : p;
            *num /= g;
            *den /= g;
            return true;
        }
        q = p;
        p = r;
    }
}

bool ml_ratfun_is_int(ml_ratfun x, int64_t *out) {
    int64_t den = 0;

    return small_fraction(x, out, &den) && den == 1;
}

/* --- roots -------------------------------------------------------------------- */

static ml_ratfun root_atom(ml_algebra *a, ml_poly radicand, int64_t index) {
    ml_atom atom = { .kind = ML_ATOM_ROOT, .index = (int32_t)index, .n_arg = 1 };

    atom.arg[0] = (ml_ratfun){ radicand, one(a) };
    return of_atom(a, &atom);
}

/* Multiplies *out by base to the power of k. */
static void times_power(ml_algebra *a, ml_ratfun *out, uint64_t base, int64_t k) {
    for (; k > 0; k--)
        *out = ml_ratfun_mul(a, *out, ml_ratfun_int(a, ml_big_of(&a->work, (int64_t)base)));
}

/* Greatest common divisor (Euclid); of 0 and b it is b. */
static int64_t common(int64_t a, int64_t b) {
    while (a) {
        int64_t r = b % a;
        b = a;
        a = r;
    }
    return b;
}

/* Writes the root of a positive number as a product of roots of primes, as far as small
 * primes divide it: sqrt(12) is 2 sqrt(3), sqrt(6) is sqrt(2) sqrt(3), and the fourth root
 * of 4 is sqrt(2). */
static ml_ratfun root_of_number(ml_algebra *a, uint64_t v, int64_t index) {
    ml_ratfun out = ml_ratfun_int(a, ml_big_of(&a->work, 1));

    ml_work_take(&a->work, PRIME_MAX);
    for (uint64_t p = 2; p <= PRIME_MAX && v > 1; p++) {
        int64_t times = 0;
        for (; v % p == 0; v /= p)
            times++;
        times_power(a, &out, p, times / index);
        for (int64_t g = common(times % index, index), k = times % index / g; k > 0; k--)
            out = ml_ratfun_mul(
                a, out,
                root_atom(a, poly_of(a, ml_big_of(&a->work, (int64_t)p)), index / g));
    }
    if (v > 1)
        out = ml_ratfun_mul(
            a, out, root_atom(a, poly_of(a, ml_big_of(&a->work, (int64_t)v)), index));
    return out;
}

static ml_ratfun root_of_constant(ml_algebra *a, int64_t v, int64_t index) {
    ml_ratfun root;

    if (v == 0)
        return ml_ratfun_int(a, (ml_big){ 0 });
    root = root_of_number(a, (uint64_t)(v < 0 ? -v : v), index);
    if (v > 0)
        return root;
    if (index % 2 == 1)
        return ml_ratfun_minus(a, root);
    if (index == 2)
        return ml_ratfun_mul(a, ml_ratfun_symbol(a, ml_str_of("i")), root);
    a->work.spent = true;
    return root;
}

/* The largest number, among small ones, whose index-th power divides all coefficients. */
static uint64_t power_in(ml_poly p, int64_t index) {
    uint64_t found = 1;

    for (uint64_t d = 2; d <= 100; d++) {
        uint64_t power = 1;
        bool divides = true;
        for (int64_t k = 0; k < index && power < (uint64_t)1 << 32; k++)
            power *= d;
        for (int32_t i = 0; i < p.n && divides; i++) {
            uint64_t c = 0;
            divides = ml_big_u64(p.term[i].coef, &c) && c % power == 0;
        }
        if (divides)
            found = d;
    }
    return found;
}

static ml_poly divided(ml_algebra *a, ml_poly p, uint64_t d, int64_t index) {
    ml_term *t = take_terms(a, p.n);

    if (!t)
        return p;
    for (int32_t i = 0; i < p.n; i++) {
        uint64_t c = 0;
        t[i] = p.term[i];
        ml_big_u64(t[i].coef, &c);
        for (int64_t k = 0; k < index; k++)
            c /= d;
        t[i].coef = ml_big_of(&a->work, t[i].coef.neg ? -(int64_t)c : (int64_t)c);
    }
    return (ml_poly){ p.n, t };
}

/* root(p/q) = root(p q^(index-1)) / q */
ml_ratfun ml_ratfun_root(ml_algebra *a, ml_ratfun x, int64_t index) {
    ml_poly radicand;
    ml_ratfun root, below;
    uint64_t outside;
    int64_t v, den;

    if (index < 2 || index > 50 || a->work.spent) {
        a->work.spent = true;
        return x;
    }
    if (small_fraction(x, &v, &den))
        x = (ml_ratfun){ poly_of(a, ml_big_of(&a->work, v)),
                         poly_of(a, ml_big_of(&a->work, den)) };
    below = (ml_ratfun){ x.den, one(a) };
    radicand = poly_mul(a, x.num, poly_pow(a, x.den, index - 1));
    if (constant(radicand, &v))
        return ml_ratfun_div(a, root_of_constant(a, v, index), below);
    if (a->work.spent || radicand.n == 0)
        return x;
    outside = power_in(radicand, index);
    root = root_atom(a, divided(a, radicand, outside, index), index);
    times_power(a, &root, outside, 1);
    return ml_ratfun_div(a, root, below);
}

/* --- powers ------------------------------------------------------------------- */

static ml_ratfun whole_power(ml_algebra *a, ml_ratfun x, int64_t k) {
    ml_ratfun r = x;

    if (k > POWER_MAX || k < -POWER_MAX) {
        a->work.spent = true;
        return x;
    }
    r.num = poly_pow(a, x.num, k < 0 ? -k : k);
    r.den = poly_pow(a, x.den, k < 0 ? -k : k);
    return k < 0 ? ml_ratfun_div(a, ml_ratfun_int(a, ml_big_of(&a->work, 1)), r) : r;
}

static ml_ratfun constant_power(ml_algebra *a, ml_ratfun x, int64_t num, int64_t den) {
    return den == 1 ? whole_power(a, x, num)
                    : whole_power(a, ml_ratfun_root(a, x, den), num);
}

/* x to the power of one term of an exponent: the term's coefficient becomes a power of the
 * atom, so that 2^(2n) is (2^n)^2. */
static ml_ratfun term_power(ml_algebra *a, ml_ratfun x, const ml_term *t, ml_poly den) {
    ml_atom atom = { .kind = ML_ATOM_POWER, .n_arg = 2 };
    ml_term *bare = ML_NEW(a->work.arena, ml_term, 1);
    uint64_t size = 0;
    int64_t times = 1;

    *bare = *t;
    if (ml_big_u64(t->coef, &size) && size <= POWER_MAX) {
        bare->coef = ml_big_of(&a->work, 1);
        times = t->coef.neg ? -(int64_t)size : (int64_t)size;
    }
    atom.arg[0] = x;
    atom.arg[1] = (ml_ratfun){ { 1, bare }, den };
    return whole_power(a, of_atom(a, &atom), times);
}

ml_ratfun ml_ratfun_pow(ml_algebra *a, ml_ratfun x, ml_ratfun y) {
    ml_ratfun out = ml_ratfun_int(a, ml_big_of(&a->work, 1));
    int64_t num, den;

    if (a->work.spent || y.num.n > 8) {
        a->work.spent = true;
        return out;
    }
    if (small_fraction(y, &num, &den))
        return constant_power(a, x, num, den);
    for (int32_t i = 0; i < y.num.n; i++) {
        ml_ratfun part = { { 1, &y.num.term[i] }, y.den };
        out = ml_ratfun_mul(a, out,
                            small_fraction(part, &num, &den)
                                ? constant_power(a, x, num, den)
                                : term_power(a, x, &y.num.term[i], y.den));
    }
    return out;
}
