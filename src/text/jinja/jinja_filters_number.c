/* Filters that convert or round numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

static int digit_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* Strips whitespace; for ASCII strings C's whitespace, not Unicode's. */
static ml_str number_text(ml_str s) {
    bool ascii = ml_jstr_count_chars(s) == (int64_t)s.len;
    return ml_jstr_strip(s, ascii ? ml_str_of(" \t\n\v\f\r") : (ml_str){ 0 }, ML_J_BOTH);
}

/* int(text, base); false if Python raises ValueError */
static bool parse_int(ml_str s, int64_t base, int64_t *out) {
    size_t i = 0;
    bool minus, digit_before = false;
    int64_t v = 0;

    s = number_text(s);
    minus = s.len && s.ptr[0] == '-';
    i = s.len && (minus || s.ptr[0] == '+');
    if (s.len > i + 2 && s.ptr[i] == '0' &&
        (((s.ptr[i + 1] | 0x20) == 'x' && base == 16) ||
         ((s.ptr[i + 1] | 0x20) == 'o' && base == 8) ||
         ((s.ptr[i + 1] | 0x20) == 'b' && base == 2)))
        i += 2;
    if (i == s.len)
        return false;
    for (; i < s.len; i++) {
        int d = digit_value(s.ptr[i]);
        if (s.ptr[i] == '_' && digit_before && i + 1 < s.len) {
            digit_before = false;
            continue;
        }
        if (d >= base || __builtin_mul_overflow(v, base, &v) ||
            __builtin_add_overflow(v, minus ? -d : d, &v))
            return false;
        digit_before = true;
    }
    *out = v;
    return digit_before;
}

/* float(text) */
static bool parse_float(ml_jrun *r, ml_str s, double *out) {
    char *text, *end;
    size_t n = 0;

    s = number_text(s);
    text = ml_jrun_take(r, s.len + 1, 1);
    for (size_t i = 0; i < s.len; i++) {
        bool between = i && i + 1 < s.len && digit_value(s.ptr[i - 1]) < 10 &&
                       digit_value(s.ptr[i + 1]) < 10;
        if (s.ptr[i] == '_' && between)
            continue;
        if (s.ptr[i] == 'x' || s.ptr[i] == 'X' || s.ptr[i] == '(' || !s.ptr[i])
            return false;
        text[n++] = s.ptr[i];
    }
    *out = strtod(text, &end);
    return n && *end == 0;
}

static bool float_to_int(double f, int64_t *out) {
    if (!(fabs(f) < 9223372036854775808.0))
        return false;
    *out = (int64_t)f;
    return true;
}

static ml_jval f_int(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval dflt = ml_jarg_given(a, 0) ? a->arg[0] : ml_jint(0);
    int64_t base = ml_jarg_int(r, a, 1, 10), i;
    double f;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (ml_jval_i64(v, &i))
        return ml_jint(i);
    if (v.kind == ML_J_BIGINT)
        return v;
    if (v.kind == ML_J_FLOAT)
        return float_to_int(v.f, &i) ? ml_jint(i) : dflt;
    if (v.kind != ML_J_STR)
        return dflt;
    if (parse_int(ml_jstr_get(v), base, &i))
        return ml_jint(i);
    return parse_float(r, ml_jstr_get(v), &f) && float_to_int(f, &i) ? ml_jint(i) : dflt;
}

static ml_jval f_float(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval dflt = ml_jarg_given(a, 0) ? a->arg[0] : ml_jfloat(0);
    double f;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    if (ml_jval_is_number(v) && v.kind != ML_J_BIGINT)
        return ml_jfloat(ml_jval_f64(v));
    if (v.kind != ML_J_STR && v.kind != ML_J_BIGINT)
        return dflt;
    return parse_float(r, ml_jstr_get(v), &f) ? ml_jfloat(f) : dflt;
}

static ml_jval f_abs(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    int64_t i;

    (void)a;
    if (ml_jval_i64(v, &i))
        return i < 0 ? ml_jop_negate(r, v, true) : ml_jint(i);
    if (v.kind != ML_J_FLOAT)
        ml_jraise(r, "TypeError", "bad operand type for abs(): '%s'", ml_jval_type(v));
    return ml_jfloat(fabs(v.f));
}

/* Correctly rounded in decimal, ties to even, as Python's round(). */
static double round_float(double f, int64_t precision) {
    char text[400];
    int exponent;

    if (!isfinite(f) || f == 0 || precision > 300)
        return f;
    if (precision >= 0) {
        char *long_text = NULL;
        double x = f;
        if (asprintf(&long_text, "%.*f", (int)precision, f) >= 0)
            x = strtod(long_text, NULL);
        free(long_text);
        return x;
    }
    snprintf(text, sizeof text, "%.0e", f);
    exponent = atoi(strchr(text, 'e') + 1);
    if (exponent + precision < -1)
        return copysign(0, f);
    if (exponent + precision < 0) {
        double unit = pow(10, (double)-precision);
        return fabs(f) > unit / 2 ? copysign(unit, f) : copysign(0, f);
    }
    snprintf(text, sizeof text, "%.*e", (int)(exponent + precision), f);
    return strtod(text, NULL);
}

static ml_jval round_int(ml_jrun *r, int64_t i, int64_t precision) {
    int64_t unit = 1, rest;

    for (int64_t k = precision; k < 0; k++)
        if (__builtin_mul_overflow(unit, 10, &unit))
            return ml_jint(0);
    rest = i % unit;
    i -= rest;
    rest = rest < 0 ? -rest : rest;
    if (rest * 2 > unit || (rest * 2 == unit && (i / unit) % 2 != 0))
        return ml_jop_binary(r, ML_JO_ADD, ml_jint(i), ml_jint(i < 0 ? -unit : unit));
    return ml_jint(i);
}

static ml_jval f_round(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    int64_t precision = ml_jarg_int(r, a, 0, 0), i;
    ml_str method = ml_jarg_str(r, a, 1, ml_str_of("common"));
    double unit = pow(10, (double)precision), f;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise(r, "TypeError", "type Undefined doesn't define __round__ method");
    if (!ml_str_is(method, "common") && !ml_str_is(method, "ceil") &&
        !ml_str_is(method, "floor"))
        ml_jraise(r, "FilterArgumentError", "method must be common, ceil or floor");
    if (!ml_jval_is_number(v) || v.kind == ML_J_BIGINT)
        ml_jraise(r, "TypeError", "type %s doesn't define __round__ method",
                  ml_jval_type(v));
    f = ml_jval_f64(v);
    if (ml_str_is(method, "ceil"))
        return ml_jfloat(ceil(f * unit) / unit);
    if (ml_str_is(method, "floor"))
        return ml_jfloat(floor(f * unit) / unit);
    if (ml_jval_i64(v, &i))
        return round_int(r, i, precision);
    return ml_jfloat(round_float(f, precision));
}

static ml_jval f_filesizeformat(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    static const char *const decimal[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
    static const char *const binary[] = { "KiB", "MiB", "GiB", "TiB",
                                          "PiB", "EiB", "ZiB", "YiB" };
    bool is_binary = ml_jarg_bool(r, a, 0, false);
    double base = is_binary ? 1024 : 1000, unit = base, f;
    ml_jbuf b = { 0 };
    int i = 0;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, v);
    f = ml_jval_f64(v);
    if (v.kind == ML_J_STR && !parse_float(r, ml_jstr_get(v), &f))
        ml_jraise(r, "ValueError", "could not convert string to float");
    if (v.kind != ML_J_STR && !ml_jval_is_number(v))
        ml_jraise(r, "TypeError", "float() argument must be a string or a real number");
    if (f == 1)
        return ml_jstr_of(r, "1 Byte");
    if (f < base) {
        ml_jbuf_printf(r, &b, "%lld Bytes", (long long)f);
        return ml_jbuf_value(r, &b);
    }
    for (; i < 7 && f >= unit * base; i++)
        unit *= base;
    ml_jbuf_printf(r, &b, "%.1f %s", base * f / (unit * base),
                   is_binary ? binary[i] : decimal[i]);
    return ml_jbuf_value(r, &b);
}

const ml_jnative ml_jfilters_number[] = {
    { "int", f_int, "default base", 0, false },
    { "float", f_float, "default", 0, false },
    { "abs", f_abs, "", 0, false },
    { "round", f_round, "precision method", 0, false },
    { "filesizeformat", f_filesizeformat, "binary", 0, false },
    { 0 },
};
