/* Methods of numbers. */
#include <math.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

static ml_jval float_is_integer(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(isfinite(self.f) && self.f == floor(self.f));
}

static ml_jval number_conjugate(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    return self;
}

static ml_jval int_bit_length(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t i = 0, n = 0;

    (void)r, (void)a;
    ml_jval_i64(self, &i);
    for (uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i; u; u >>= 1)
        n++;
    return ml_jint(n);
}

static ml_jval int_bit_count(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int64_t i = 0;

    (void)r, (void)a;
    ml_jval_i64(self, &i);
    return ml_jint(__builtin_popcountll(i < 0 ? -(uint64_t)i : (uint64_t)i));
}

static ml_jval int_ratio(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jval pair[2] = { self, ml_jint(1) };

    (void)a;
    if (self.kind == ML_J_BOOL)
        pair[0] = ml_jint(self.b);
    return ml_jseq_new(r, ML_J_TUPLE, pair, 2);
}

/* m * 2^e as an integer of arbitrary size. */
static ml_jval scaled(ml_jrun *r, int64_t m, int e) {
    uint8_t digit[400] = { 0 }; /* least significant first; 2^1074 has 324 digits */
    uint64_t rest = m < 0 ? -(uint64_t)m : (uint64_t)m;
    char text[402];
    int n = 0, at = 0;
    ml_jval v;

    if (e < 62 && rest < (uint64_t)1 << (62 - e))
        return ml_jint(m * ((int64_t)1 << e));
    for (; rest; rest /= 10)
        digit[n++] = (uint8_t)(rest % 10);
    for (; e > 0; e--) {
        int carry = 0;
        for (int i = 0; i < n; i++) {
            carry += 2 * digit[i];
            digit[i] = (uint8_t)(carry % 10);
            carry /= 10;
        }
        if (carry)
            digit[n++] = (uint8_t)carry;
    }
    if (m < 0)
        text[at++] = '-';
    while (n > 0)
        text[at++] = (char)('0' + digit[--n]);
    v = ml_jstr_copy(r, (ml_str){ text, (size_t)at });
    v.kind = ML_J_BIGINT;
    return v;
}

static ml_jval float_ratio(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    int e = 0;
    double m;
    int64_t whole;
    ml_jval pair[2];

    (void)a;
    if (isnan(self.f))
        ml_jraise(r, "ValueError", "cannot convert NaN to integer ratio");
    if (isinf(self.f))
        ml_jraise(r, "OverflowError", "cannot convert Infinity to integer ratio");
    m = frexp(self.f, &e);
    whole = (int64_t)ldexp(m, 53);
    for (e -= 53; whole && whole % 2 == 0; e++)
        whole /= 2;
    if (!whole)
        e = 0;
    pair[0] = scaled(r, whole, e > 0 ? e : 0);
    pair[1] = scaled(r, 1, e < 0 ? -e : 0);
    return ml_jseq_new(r, ML_J_TUPLE, pair, 2);
}

static ml_jval float_hex(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    uint64_t bits;
    int exponent;
    ml_jbuf b = { 0 };

    (void)a;
    memcpy(&bits, &self.f, sizeof bits);
    exponent = (int)(bits >> 52 & 0x7ff);
    if (isnan(self.f))
        return ml_jstr_of(r, "nan");
    if (isinf(self.f))
        return ml_jstr_of(r, self.f < 0 ? "-inf" : "inf");
    if (self.f == 0.0)
        return ml_jstr_of(r, bits >> 63 ? "-0x0.0p+0" : "0x0.0p+0");
    ml_jbuf_printf(r, &b, "%s0x%d.%013llxp%+d", bits >> 63 ? "-" : "", exponent ? 1 : 0,
                   (unsigned long long)(bits & 0xfffffffffffffULL),
                   exponent ? exponent - 1023 : -1022);
    return ml_jbuf_value(r, &b);
}

const ml_jnative ml_jmethods_float[] = {
    { "is_integer", float_is_integer, "", 0, false },
    { "hex", float_hex, "", 0, false },
    { "as_integer_ratio", float_ratio, "", 0, false },
    { "conjugate", number_conjugate, "", 0, false },
    { 0 },
};

const ml_jnative ml_jmethods_int[] = {
    { "bit_length", int_bit_length, "", 0, false },
    { "bit_count", int_bit_count, "", 0, false },
    { "as_integer_ratio", int_ratio, "", 0, false },
    { "conjugate", number_conjugate, "", 0, false },
    { 0 },
};
