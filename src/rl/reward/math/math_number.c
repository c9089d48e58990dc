#include "rl/reward/math/math_number.h"

#include <string.h>

#define EXPONENT_MAX 2000 /* maximum exponent of a number such as 1e400 */

static ml_ratfun ten_to(ml_algebra *a, int64_t k) {
    if (k > EXPONENT_MAX) {
        a->work.spent = true;
        k = 0;
    }
    return ml_ratfun_int(a, ml_big_power(&a->work, 10, k));
}

/* Returns the exponent of a decimal number's text and removes it from *mantissa. */
static int64_t exponent_of(ml_str *mantissa) {
    const char *e = memchr(mantissa->ptr, 'e', mantissa->len);
    int64_t v = 0;
    bool neg;

    if (!e)
        e = memchr(mantissa->ptr, 'E', mantissa->len);
    if (!e)
        return 0;
    neg = e[1] == '-';
    for (const char *c = e + 1; c < mantissa->ptr + mantissa->len; c++)
        if (*c >= '0' && *c <= '9' && v <= EXPONENT_MAX)
            v = v * 10 + (*c - '0');
    mantissa->len = (size_t)(e - mantissa->ptr);
    return neg ? -v : v;
}

/* The digits of x and y, concatenated, as one number. */
static ml_big all_digits(ml_algebra *a, ml_str x, ml_str y) {
    char *s = ML_NEW(a->work.arena, char, x.len + y.len + 1);
    size_t n = 0;

    for (size_t i = 0; i < x.len; i++)
        if (x.ptr[i] != '.')
            s[n++] = x.ptr[i];
    for (size_t i = 0; i < y.len; i++)
        s[n++] = y.ptr[i];
    return ml_big_digits(&a->work, (ml_str){ s, n });
}

ml_ratfun ml_math_number(ml_algebra *a, const ml_mtok *t) {
    ml_str text = t->text;
    int64_t exponent = exponent_of(&text), places = 0;
    const char *point = memchr(text.ptr, '.', text.len);
    ml_ratfun v = ml_ratfun_int(a, all_digits(a, text, t->repeat));

    if (point)
        places = (int64_t)(text.ptr + text.len - point) - 1;
    if (t->repeat.len) { /* 0.1(6) is (16 - 1) / 90 */
        ml_ratfun head = ml_ratfun_int(a, all_digits(a, text, (ml_str){ 0 }));
        ml_ratfun nines = ml_ratfun_add(a, ten_to(a, (int64_t)t->repeat.len),
                                        ml_ratfun_int(a, ml_big_of(&a->work, -1)));
        v = ml_ratfun_add(a, v, ml_ratfun_minus(a, head));
        v = ml_ratfun_div(a, v, nines);
    }
    exponent -= places;
    return exponent >= 0 ? ml_ratfun_mul(a, v, ten_to(a, exponent))
                         : ml_ratfun_div(a, v, ten_to(a, -exponent));
}
