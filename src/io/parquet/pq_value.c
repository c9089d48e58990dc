#include "io/parquet/pq_value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/pyfloat.h"
#include "base/utf8.h"

static uint64_t load(ml_str v) {
    uint64_t x = 0;

    for (size_t i = 0; i < v.len && i < 8; i++)
        x |= (uint64_t)(unsigned char)v.ptr[i] << (8 * i);
    return x;
}

static void put_text(ml_text *out, const char *s) {
    ml_text_add(out, s, strlen(s));
}

static void put_unsigned(ml_text *out, uint64_t v) {
    char digits[24], *p = digits + sizeof digits;

    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    ml_text_add(out, p, (size_t)(digits + sizeof digits - p));
}

static void put_signed(ml_text *out, int64_t v) {
    if (v < 0)
        ml_text_add(out, "-", 1);
    put_unsigned(out, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static void put_float(ml_text *out, double v) {
    char text[ML_PYFLOAT_TEXT];

    ml_pyfloat_text(v, text);
    if (isfinite(v)) {
        put_text(out, text);
        return;
    }
    ml_text_add(out, "\"", 1);
    put_text(out, text);
    ml_text_add(out, "\"", 1);
}

static double half(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 31);
    double fraction = (double)(bits & 1023), v;

    if (exponent == 31)
        v = fraction != 0 ? (double)NAN : (double)INFINITY;
    else
        v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -v : v;
}

/* Howard Hinnant's civil_from_days, in 64 bits. */
static void put_date(ml_text *out, int64_t days) {
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int64_t month = mp < 10 ? mp + 3 : mp - 9, year = yoe + era * 400 + (month <= 2);

    ml_text_printf(out, "\"%s%04lld-%02lld-%02lld\"", year < 0 ? "-" : "",
                   (long long)(year < 0 ? -year : year), (long long)month,
                   (long long)(doy - (153 * mp + 2) / 5 + 1));
}

/* --- decimals ------------------------------------------------------------------------ */

/* The digits of a big-endian magnitude; `b` is consumed.  Returns their number. */
static int decimal_digits(unsigned char *b, size_t n, char *out, int cap) {
    int at = cap;
    size_t first = 0;

    while (first < n && b[first] == 0)
        first++;
    do {
        unsigned rest = 0;
        for (size_t i = first; i < n; i++) {
            unsigned v = rest << 8 | b[i];
            b[i] = (unsigned char)(v / 10);
            rest = v % 10;
        }
        out[--at] = (char)('0' + rest);
        while (first < n && b[first] == 0)
            first++;
    } while (first < n && at > 0);
    memmove(out, out + at, (size_t)(cap - at));
    return cap - at;
}

/* As str() of Python's Decimal: very small numbers and those with a negative scale have an
 * exponent. */
static void put_digits(ml_text *out, const char *digit, int n, int scale) {
    int exponent = n - 1 - scale;

    if (scale < 0 || exponent < -6) {
        ml_text_printf(out, "%c%s%.*sE%+d", digit[0], n > 1 ? "." : "", n - 1, digit + 1,
                       exponent);
    } else if (scale == 0) {
        ml_text_add(out, digit, (size_t)n);
    } else if (n > scale) {
        ml_text_printf(out, "%.*s.%.*s", n - scale, digit, scale, digit + n - scale);
    } else {
        ml_text_printf(out, "0.%.*s%.*s", scale - n, "000000", n, digit);
    }
}

/* A two's complement number, big-endian in byte arrays, little-endian in integers.  The
 * format's precision allows at most 38 digits; Arrow's, 76: 32 bytes. */
enum { DECIMAL_BYTES = 64, DECIMAL_DIGITS = 160 };

static void put_decimal(ml_text *out, const ml_pq_node *leaf, ml_str v) {
    bool little = leaf->physical == ML_PQ_INT32 || leaf->physical == ML_PQ_INT64;
    unsigned char b[DECIMAL_BYTES];
    char digit[DECIMAL_DIGITS];
    size_t n = v.len;
    bool negative;
    int n_digit;

    if (n > sizeof b)
        n = sizeof b;
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)v.ptr[little ? n - 1 - i : v.len - n + i];
    negative = n && b[0] >> 7;
    for (size_t i = n, carry = 1; negative && i-- > 0;) {
        carry += (unsigned char)~b[i];
        b[i] = (unsigned char)carry;
        carry >>= 8;
    }
    n_digit = decimal_digits(b, n, digit, DECIMAL_DIGITS);
    put_text(out, negative ? "\"-" : "\"");
    put_digits(out, digit, n_digit, leaf->scale);
    ml_text_add(out, "\"", 1);
}

/* --- values --------------------------------------------------------------------------- */

static void put_uuid(ml_text *out, ml_str v) {
    ml_text_add(out, "\"", 1);
    for (size_t i = 0; i < v.len; i++)
        ml_text_printf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       (unsigned char)v.ptr[i]);
    ml_text_add(out, "\"", 1);
}

/* Nanoseconds of the day, then the Julian day. */
static void put_int96(ml_text *out, ml_str v) {
    uint64_t nanos = load(v), day = (uint32_t)load((ml_str){ v.ptr + 8, 4 });
    put_signed(out, (int64_t)((day - 2440588) * 86400000000000u + nanos));
}

static void put_bytes(ml_text *out, ml_str v) {
    put_text(out, "{\"b64\": \"");
    ml_base64_write(out, v.ptr, v.len);
    put_text(out, "\"}");
}

static void put_unsigned_of(ml_text *out, const ml_pq_node *leaf, ml_str v) {
    uint64_t x = load(v);

    if (leaf->bit_width == 8 || leaf->bit_width == 16)
        x &= ((uint64_t)1 << leaf->bit_width) - 1;
    put_unsigned(out, x);
}

static void put_plain(ml_text *out, const ml_pq_node *leaf, ml_str v) {
    uint64_t x = load(v);
    uint32_t narrow = (uint32_t)x;
    double d;
    float f;

    switch (leaf->physical) {
    case ML_PQ_BOOLEAN: put_text(out, x ? "true" : "false"); return;
    case ML_PQ_INT32: put_signed(out, (int32_t)narrow); return;
    case ML_PQ_INT64: put_signed(out, (int64_t)x); return;
    case ML_PQ_INT96: put_int96(out, v); return;
    case ML_PQ_FLOAT:
        memcpy(&f, &narrow, sizeof f);
        put_float(out, (double)f);
        return;
    case ML_PQ_DOUBLE:
        memcpy(&d, &x, sizeof d);
        put_float(out, d);
        return;
    case ML_PQ_BYTE_ARRAY:
    case ML_PQ_FIXED: put_bytes(out, v); return;
    }
}

bool ml_pq_value_put(ml_text *out, const ml_pq_node *leaf, ml_str v) {
    switch (leaf->logical) {
    case ML_PQ_PLAIN: put_plain(out, leaf, v); break;
    case ML_PQ_TEXT: ml_json_quote(out, v); return ml_utf8_valid(v) == v.len;
    case ML_PQ_UNSIGNED: put_unsigned_of(out, leaf, v); break;
    case ML_PQ_DATE: put_date(out, (int32_t)(uint32_t)load(v)); break;
    case ML_PQ_DECIMAL: put_decimal(out, leaf, v); break;
    case ML_PQ_FLOAT16: put_float(out, half(load(v))); break;
    case ML_PQ_UUID: put_uuid(out, v); break;
    }
    return true;
}
