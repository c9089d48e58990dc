#include "text/jinja/jinja_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pyfloat.h"

#define MAX_PRECISION 1000 /* the maximum precision of a float */

bool ml_jformat_is_digit(const char *p, const char *end) {
    return p < end && *p >= '0' && *p <= '9';
}

const char *ml_jformat_read(ml_jrun *r, const char *p, const char *end, int64_t *out) {
    for (*out = 0; ml_jformat_is_digit(p, end); p++) {
        *out = *out * 10 + (*p - '0');
        if (*out > r->max_bytes)
            ml_jraise(r, "ValueError", "Too many decimal digits in format string");
    }
    return p;
}

/* --- writing with a width --------------------------------------------------------------------- */

void ml_jformat_pad(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, ml_str text, char dflt) {
    int64_t lack = s->width - ml_jstr_count_chars(text), left;
    char align = s->align ? s->align : dflt;

    if (lack < 0)
        lack = 0;
    left = align == '>' || align == '=' ? lack : align == '^' ? lack / 2 : 0;
    ml_jbuf_fill(r, b, s->fill, left);
    ml_jbuf_str(r, b, text);
    ml_jbuf_fill(r, b, s->fill, lack - left);
}

/* The integer digits with thousands separators, which also apply to leading zeros. */
static void group_digits(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, ml_str digits,
                         int every, int64_t width) {
    int64_t n = (int64_t)digits.len;

    if (!s->group) {
        ml_jbuf_fill(r, b, '0', width - n);
        ml_jbuf_str(r, b, digits);
        return;
    }
    while (n + (n - 1) / every < width)
        n++;
    for (int64_t i = n; i > 0; i--) {
        if (i <= (int64_t)digits.len)
            ml_jbuf_add(r, b, digits.ptr + (int64_t)digits.len - i, 1);
        else
            ml_jbuf_char(r, b, '0');
        if (i > 1 && (i - 1) % every == 0)
            ml_jbuf_char(r, b, (uint32_t)s->group);
    }
}

/* Sign, prefix (0x) and body (digits, possibly with a point, exponent or %). */
static void write_number(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, bool minus,
                         const char *prefix, ml_str body) {
    const char *sign = minus ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
    size_t whole = 0;
    bool zeros = s->align == '=' && s->fill == '0';
    int64_t taken;
    ml_jbuf out = { 0 };

    while (whole < body.len && ((body.ptr[whole] >= '0' && body.ptr[whole] <= '9') ||
                                (s->type == 'x' || s->type == 'X')))
        whole++;
    taken = (int64_t)(strlen(sign) + strlen(prefix) + body.len - whole);
    ml_jbuf_printf(r, &out, "%s%s", sign, prefix);
    if (s->align == '=' && !zeros)
        ml_jbuf_fill(r, &out, s->fill, s->width - taken - (int64_t)whole);
    group_digits(r, &out, s, (ml_str){ body.ptr, whole },
                 strchr("bBoxX", s->type) && s->type ? 4 : 3, zeros ? s->width - taken : 0);
    ml_jbuf_add(r, &out, body.ptr + whole, body.len - whole);
    ml_jformat_pad(r, b, s, (ml_str){ out.ptr, out.len }, '>');
}

/* --- numbers ------------------------------------------------------------------------------------- */

static void int_digits(ml_jrun *r, ml_jbuf *b, uint64_t u, unsigned base, bool upper) {
    const char *symbols = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char text[64];
    size_t n = sizeof text;

    do {
        text[--n] = symbols[u % base];
        u /= base;
    } while (u);
    ml_jbuf_add(r, b, text + n, sizeof text - n);
}

void ml_jformat_int(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, ml_jval v, bool is_percent) {
    unsigned base = s->type == 'b'            ? 2
                    : s->type == 'o'          ? 8
                    : (s->type | 0x20) == 'x' ? 16
                                              : 10;
    const char *prefix = base == 2        ? "0b"
                         : base == 8      ? "0o"
                         : base == 10     ? ""
                         : s->type == 'X' ? "0X"
                                          : "0x";
    ml_jbuf digits = { 0 }, body = { 0 };
    bool minus;
    int64_t i = 0;

    if (v.kind == ML_J_BIGINT) {
        if (base != 10)
            ml_jraise(r, "OverflowError", "the integer does not fit into 64 bits");
        minus = v.s->ptr[0] == '-';
        ml_jbuf_add(r, &digits, v.s->ptr + minus, v.s->len - minus);
    } else {
        ml_jval_i64(v, &i);
        minus = i < 0;
        int_digits(r, &digits, minus ? -(uint64_t)i : (uint64_t)i, base, s->type == 'X');
    }
    if (is_percent)
        ml_jbuf_fill(r, &body, '0', s->precision - (int64_t)digits.len);
    else if (s->precision >= 0)
        ml_jraise(r, "ValueError", "Precision not allowed in integer format specifier");
    ml_jbuf_add(r, &body, digits.ptr, digits.len);
    write_number(r, b, s, minus, s->alternate ? prefix : "",
                 (ml_str){ body.ptr, body.len });
}

/* format(f, ".6") and the like: as g, but always with a fraction. */
static void float_plain(ml_jrun *r, ml_jbuf *b, double f, int64_t precision) {
    char text[ML_PYFLOAT_TEXT];
    size_t begin = b->len;
    int exponent;

    if (precision < 0 || !isfinite(f)) {
        ml_pyfloat_text(f, text);
        ml_jbuf_str(r, b, ml_str_of(text));
        return;
    }
    precision = precision ? precision : 1;
    ml_jbuf_printf(r, b, "%.*e", (int)precision - 1, f);
    exponent = atoi((const char *)memchr(b->ptr + begin, 'e', b->len - begin) + 1);
    b->len = begin;
    ml_jbuf_printf(r, b, "%.*g", (int)precision, f);
    if (exponent < -4 || exponent >= precision)
        return;
    if (!memchr(b->ptr + begin, '.', b->len - begin))
        ml_jbuf_str(r, b, ml_str_of(".0"));
}

void ml_jformat_float(ml_jrun *r, ml_jbuf *b, const ml_jspec *s, double f) {
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    double size = fabs(f);
    ml_jbuf body = { 0 };

    if (s->precision > MAX_PRECISION)
        ml_jraise(r, "ValueError", "precision too big");
    switch (s->type) {
    case 0: float_plain(r, &body, size, s->precision); break;
    case '%': ml_jbuf_printf(r, &body, "%.*f%%", precision, size * 100); break;
    case 'e':
        ml_jbuf_printf(r, &body, s->alternate ? "%#.*e" : "%.*e", precision, size);
        break;
    case 'E':
        ml_jbuf_printf(r, &body, s->alternate ? "%#.*E" : "%.*E", precision, size);
        break;
    case 'f':
    case 'F':
        ml_jbuf_printf(r, &body, s->alternate ? "%#.*f" : "%.*f", precision, size);
        break;
    case 'G':
        ml_jbuf_printf(r, &body, s->alternate ? "%#.*G" : "%.*G", precision, size);
        break;
    default: ml_jbuf_printf(r, &body, s->alternate ? "%#.*g" : "%.*g", precision, size);
    }
    write_number(r, b, s, signbit(f) && !isnan(f), "", (ml_str){ body.ptr, body.len });
}

double ml_jformat_f64(ml_jrun *r, ml_jval v) {
    if (v.kind == ML_J_BIGINT)
        ml_jraise(r, "OverflowError", "the integer does not fit into 64 bits");
    return ml_jval_f64(v);
}

ml_str ml_jformat_cut(ml_jval s, int64_t n_char) {
    if (n_char < 0 || n_char >= s.s->n_char)
        return ml_jstr_get(s);
    return (ml_str){ s.s->ptr, ml_jstr_offset(s, n_char) };
}
