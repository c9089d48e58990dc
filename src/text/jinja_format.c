/* "..." % args and "...".format(args). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_priv.h"

#define MAX_PRECISION 1000 /* digits of a float that anybody wants */

/* What both languages can ask for. */
typedef struct spec {
    uint32_t fill;
    char align; /* < > ^ =, 0: the type's own */
    char sign;  /* + - or blank */
    bool alternate;
    int64_t width, precision; /* precision -1: not given */
    char group;               /* , or _ or 0 */
    char type;                /* 0: none */
} spec;

static bool digit(const char *p, const char *end) {
    return p < end && *p >= '0' && *p <= '9';
}

static const char *read_number(ml_jrun *r, const char *p, const char *end, int64_t *out) {
    for (*out = 0; digit(p, end); p++) {
        *out = *out * 10 + (*p - '0');
        if (*out > r->max_bytes)
            ml_jraise(r, "ValueError", "Too many decimal digits in format string");
    }
    return p;
}

/* --- writing with a width --------------------------------------------------------------------- */

static void pad(ml_jrun *r, ml_jbuf *b, const spec *s, ml_str text, char dflt) {
    int64_t lack = s->width - ml_jstr_count_chars(text), left;
    char align = s->align ? s->align : dflt;

    if (lack < 0)
        lack = 0;
    left = align == '>' || align == '=' ? lack : align == '^' ? lack / 2 : 0;
    ml_jbuf_fill(r, b, s->fill, left);
    ml_jbuf_str(r, b, text);
    ml_jbuf_fill(r, b, s->fill, lack - left);
}

/* Digits before the point, with separators, of which leading zeros get theirs too. */
static void group_digits(ml_jrun *r, ml_jbuf *b, const spec *s, ml_str digits, int every,
                         int64_t width) {
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

/* minus, prefix (0x) and body (digits, perhaps with a point, exponent or %). */
static void write_number(ml_jrun *r, ml_jbuf *b, const spec *s, bool minus,
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
    pad(r, b, s, (ml_str){ out.ptr, out.len }, '>');
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

static void format_int(ml_jrun *r, ml_jbuf *b, const spec *s, ml_jval v, bool is_percent) {
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

/* format(f, ".6") and the like: as g, but never without a fraction. */
static void float_plain(ml_jrun *r, ml_jbuf *b, double f, int64_t precision) {
    char text[ML_JFLOAT_TEXT];
    size_t begin = b->len;
    int exponent;

    if (precision < 0 || !isfinite(f)) {
        ml_jfloat_text(f, text);
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

static void format_float(ml_jrun *r, ml_jbuf *b, const spec *s, double f) {
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

static double float_of(ml_jrun *r, ml_jval v) {
    if (v.kind == ML_J_BIGINT)
        ml_jraise(r, "OverflowError", "the integer does not fit into 64 bits");
    return ml_jval_f64(v);
}

static ml_str cut(ml_jval s, int64_t n_char) {
    if (n_char < 0 || n_char >= s.s->n_char)
        return ml_jstr_get(s);
    return (ml_str){ s.s->ptr, ml_jstr_offset(s, n_char) };
}

/* --- "..." % args ----------------------------------------------------------------------------------- */

typedef struct percent {
    ml_jrun *r;
    const char *p, *end;
    ml_jval args;
    int64_t next; /* of a tuple */
    bool markup;  /* what is put in is escaped */
    bool by_key;  /* the arguments are a mapping: leftovers do not matter */
} percent;

static ml_jval next_arg(percent *f) {
    bool is_tuple = f->args.kind == ML_J_TUPLE;

    if (f->next >= (is_tuple ? f->args.seq->n : 1))
        ml_jraise(f->r, "TypeError", "not enough arguments for format string");
    f->next++;
    return is_tuple ? f->args.seq->item[f->next - 1] : f->args;
}

static ml_jval keyed_arg(percent *f) {
    const char *key = ++f->p;
    const ml_jval *v;
    int depth = 1;

    for (; f->p < f->end && depth; f->p++)
        depth += *f->p == '(' ? 1 : *f->p == ')' ? -1 : 0;
    if (depth)
        ml_jraise(f->r, "ValueError", "incomplete format key");
    if (f->args.kind != ML_J_DICT)
        ml_jraise(f->r, "TypeError", "format requires a mapping");
    v = ml_jdict_name(f->r, f->args.dict, (ml_str){ key, (size_t)(f->p - 1 - key) });
    if (!v)
        ml_jraise(f->r, "KeyError", "'%.*s'", (int)(f->p - 1 - key), key);
    return *v;
}

static void read_flags(percent *f, spec *s) {
    for (; f->p < f->end && *f->p && strchr("-+ #0", *f->p); f->p++) {
        if (*f->p == '-')
            s->align = '<';
        else if (*f->p == '+' || (*f->p == ' ' && s->sign != '+'))
            s->sign = *f->p;
        else if (*f->p == '#')
            s->alternate = true;
        else if (*f->p == '0' && s->align != '<')
            s->align = '=';
    }
    s->fill = s->align == '=' ? '0' : ' ';
}

static int64_t read_size(percent *f) {
    int64_t n;

    if (f->p < f->end && *f->p == '*') {
        f->p++;
        if (!ml_jval_i64(next_arg(f), &n))
            ml_jraise(f->r, "TypeError", "* wants int");
        return n;
    }
    f->p = read_number(f->r, f->p, f->end, &n);
    return n;
}

static void put_text(percent *f, ml_jbuf *b, const spec *s, ml_jval v) {
    ml_jbuf repr = { 0 };
    spec left = *s;

    if (s->type != 's') {
        ml_jval_repr(f->r, &repr, v);
        v = ml_jbuf_value(f->r, &repr);
    }
    v = f->markup ? ml_jval_escape(f->r, v) : ml_jval_str(f->r, v);
    left.fill = ' ';
    if (left.align == '=')
        left.align = '>';
    pad(f->r, b, &left, cut(v, s->precision), '>');
}

static void put_char(percent *f, ml_jbuf *b, const spec *s, ml_jval v) {
    int64_t c;

    if (ml_jval_i64(v, &c)) {
        if (c < 0 || c >= 0x110000 || (c >= 0xd800 && c < 0xe000))
            ml_jraise(f->r, "OverflowError", "%%c arg not in range(0x110000)");
        v = ml_jstr_char(f->r, (uint32_t)c);
    }
    if (v.kind != ML_J_STR || v.s->n_char != 1)
        ml_jraise(f->r, "TypeError", "%%c requires int or char");
    pad(f->r, b, s, ml_jstr_get(v), '>');
}

static void put_number(percent *f, ml_jbuf *b, spec *s, ml_jval v) {
    bool is_int = strchr("diuoxX", s->type) != NULL;

    if (v.kind == ML_J_UNDEFINED)
        ml_jraise_undef(f->r, v);
    if (!ml_jval_is_number(v))
        ml_jraise(f->r, "TypeError", "%%%c format: a real number is required, not %s",
                  s->type, ml_jval_type(v));
    if (!is_int) {
        format_float(f->r, b, s, float_of(f->r, v));
        return;
    }
    if (v.kind == ML_J_FLOAT && strchr("oxX", s->type))
        ml_jraise(f->r, "TypeError", "%%%c format: an integer is required, not float",
                  s->type);
    if (v.kind == ML_J_FLOAT) {
        if (!(fabs(v.f) < 9223372036854775808.0))
            ml_jraise(f->r, "OverflowError", "the number does not fit into 64 bits");
        v = ml_jint((int64_t)v.f);
    }
    if (strchr("diu", s->type))
        s->type = 'd';
    format_int(f->r, b, s, v, true);
}

static void put_percent(percent *f, ml_jbuf *b) {
    spec s = { .fill = ' ', .precision = -1 };
    bool keyed = f->p < f->end && *f->p == '(';
    ml_jval v = keyed ? keyed_arg(f) : ml_jmissing();

    read_flags(f, &s);
    s.width = read_size(f);
    if (s.width < 0) {
        s.align = '<';
        s.width = -s.width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        s.precision = read_size(f);
        if (s.precision < 0)
            s.precision = 0;
    }
    while (f->p < f->end && (*f->p == 'h' || *f->p == 'l' || *f->p == 'L'))
        f->p++;
    if (f->p == f->end)
        ml_jraise(f->r, "ValueError", "incomplete format");
    s.type = *f->p++;
    if (s.type == '%') {
        ml_jbuf_char(f->r, b, '%');
        return;
    }
    if (!s.type || !strchr("diouxXeEfFgGcrsa", s.type))
        ml_jraise(f->r, "ValueError", "unsupported format character '%c' (0x%x)", s.type,
                  (unsigned char)s.type);
    if (!keyed)
        v = next_arg(f);
    if (strchr("rsa", s.type))
        put_text(f, b, &s, v);
    else if (s.type == 'c')
        put_char(f, b, &s, v);
    else
        put_number(f, b, &s, v);
}

ml_jval ml_jformat_percent(ml_jrun *r, ml_jval text, ml_jval args) {
    percent f = { .r = r,
                  .p = text.s->ptr,
                  .end = text.s->ptr + text.s->len,
                  .args = args,
                  .markup = text.s->markup,
                  .by_key = args.kind == ML_J_DICT || args.kind == ML_J_LIST ||
                            args.kind == ML_J_UNDEFINED };
    ml_jbuf b = { 0 };

    while (f.p < f.end) {
        if (*f.p != '%') {
            ml_jbuf_add(r, &b, f.p++, 1);
            continue;
        }
        f.p++;
        if (f.p == f.end)
            ml_jraise(r, "ValueError", "incomplete format");
        put_percent(&f, &b);
    }
    if (!f.by_key && f.next < (args.kind == ML_J_TUPLE ? args.seq->n : 1))
        ml_jraise(r, "TypeError", "not all arguments converted during string formatting");
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), f.markup);
}

/* --- "...".format(args) ------------------------------------------------------------------------------ */

static bool is_align(uint32_t c) {
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static spec read_spec(ml_jrun *r, ml_str text) {
    const char *p = text.ptr, *end = p + text.len;
    spec s = { .fill = ' ', .precision = -1 };
    size_t n = 0;

    if (p < end)
        ml_jchar_at(p, &n);
    if (p < end && p + n < end && is_align((uint32_t)p[n])) {
        s.fill = ml_jchar_at(p, &n);
        s.align = p[n];
        p += n + 1;
    } else if (p < end && is_align((uint32_t)*p)) {
        s.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        s.sign = *p++;
    if (p < end && *p == '#') {
        s.alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        if (!s.align) {
            s.fill = '0';
            s.align = '=';
        }
        p++;
    }
    p = read_number(r, p, end, &s.width);
    if (p < end && (*p == ',' || *p == '_'))
        s.group = *p++;
    if (p < end && *p == '.') {
        if (!digit(p + 1, end))
            ml_jraise(r, "ValueError", "Format specifier missing precision");
        p = read_number(r, p + 1, end, &s.precision);
    }
    if (p < end)
        s.type = *p++;
    if (p < end)
        ml_jraise(r, "ValueError", "Invalid format specifier '%.*s'", (int)text.len,
                  text.ptr);
    return s;
}

static _Noreturn void fail_code(ml_jrun *r, const spec *s, ml_jval v) {
    ml_jraise(r, "ValueError", "Unknown format code '%c' for object of type '%s'", s->type,
              ml_jval_type(v));
}

static void format_str(ml_jrun *r, ml_jbuf *b, spec *s, ml_jval v) {
    if (s->type && s->type != 's')
        fail_code(r, s, v);
    if (s->sign || s->group || s->align == '=') {
        if (s->align != '=' || s->fill != '0')
            ml_jraise(r, "ValueError", "option not allowed in string format specifier");
        s->align = '<';
    }
    pad(r, b, s, cut(v, s->precision), '<');
}

static void format_number(ml_jrun *r, ml_jbuf *b, spec *s, ml_jval v) {
    bool is_int = v.kind != ML_J_FLOAT;

    if (s->type == 'n')
        s->type = is_int ? 'd' : 'g';
    if (is_int && s->type == 'c') {
        ml_jval c = v.kind == ML_J_INT && v.i >= 0 && v.i < 0xd800
                        ? ml_jstr_char(r, (uint32_t)v.i)
                        : ml_jstr_of(r, "?");
        pad(r, b, s, ml_jstr_get(c), '<');
    } else if (is_int && (!s->type || strchr("dboxX", s->type))) {
        if (!s->type)
            s->type = 'd';
        format_int(r, b, s, v, false);
    } else if (!s->type || strchr("eEfFgG%", s->type)) {
        format_float(r, b, s, float_of(r, v));
    } else {
        fail_code(r, s, v);
    }
}

static void format_value(ml_jrun *r, ml_jbuf *b, ml_jval v, ml_str text, bool markup) {
    spec s;

    if (!text.len) {
        ml_jval_print(r, b, markup ? ml_jval_escape(r, v) : v);
        return;
    }
    s = read_spec(r, text);
    if (v.kind == ML_J_STR)
        format_str(r, b, &s, markup ? ml_jval_escape(r, v) : v);
    else if (ml_jval_is_number(v))
        format_number(r, b, &s, v);
    else
        ml_jraise(r, "TypeError", "unsupported format string passed to %s.__format__",
                  ml_jval_type(v));
}

typedef struct braces {
    ml_jrun *r;
    const ml_jargs *args;
    int64_t next; /* automatic number; -1 once numbers were given */
    bool markup;
    int depth;
} braces;

static ml_jval positional(const braces *f, int64_t i) {
    if (i >= f->args->n)
        ml_jraise(f->r, "IndexError",
                  "Replacement index %lld out of range for positional args tuple",
                  (long long)i);
    return f->args->pos[i];
}

static ml_jval first_of(braces *f, ml_str name) {
    int64_t i;

    if (!name.len) {
        if (f->next < 0)
            ml_jraise(f->r, "ValueError",
                      "cannot switch from manual field specification to "
                      "automatic field numbering");
        return positional(f, f->next++);
    }
    if (digit(name.ptr, name.ptr + name.len)) {
        if (f->next > 0)
            ml_jraise(f->r, "ValueError",
                      "cannot switch from automatic field numbering to "
                      "manual field specification");
        f->next = -1;
        read_number(f->r, name.ptr, name.ptr + name.len, &i);
        return positional(f, i);
    }
    for (int64_t k = 0; k < f->args->n_kw; k++)
        if (ml_str_eq(f->args->kw[k].name, name))
            return f->args->kw[k].value;
    ml_jraise(f->r, "KeyError", "'%.*s'", (int)name.len, name.ptr);
}

static size_t until(const char *p, const char *end, const char *stop) {
    size_t n = 0;
    while (p + n < end && !(p[n] && strchr(stop, p[n])))
        n++;
    return n;
}

/* name.attr[key]... */
static ml_jval field_value(braces *f, ml_str name) {
    const char *p = name.ptr, *end = p + name.len;
    size_t n = until(p, end, ".[");
    ml_jval v = first_of(f, (ml_str){ p, n });

    for (p += n; p < end; p += n) {
        bool is_attr = *p++ == '.';
        ml_str key;
        int64_t i;
        n = until(p, end, is_attr ? ".[" : "]");
        key = (ml_str){ p, n };
        if (!n)
            ml_jraise(f->r, "ValueError", "Empty attribute in format string");
        if (is_attr)
            v = ml_jval_attr(f->r, v, key);
        else if (read_number(f->r, p, p + n, &i) == p + n)
            v = ml_jval_item(f->r, v, ml_jint(i));
        else
            v = ml_jval_item(f->r, v, ml_jstr_view(f->r, key));
        n += !is_attr && p + n < end;
    }
    return v;
}

static void expand(braces *f, ml_jbuf *b, ml_str text);

/* The inside of {...}: name, !conversion, :spec, in which fields may occur again. */
static void put_field(braces *f, ml_jbuf *b, ml_str field) {
    const char *p = field.ptr, *end = p + field.len;
    size_t n = until(p, end, "!:");
    ml_jval v;
    ml_jbuf spec_text = { 0 }, repr = { 0 };

    v = field_value(f, (ml_str){ p, n });
    p += n;
    if (p < end && *p == '!') {
        if (p + 1 == end || !strchr("rsa", p[1]) || (p + 2 < end && p[2] != ':'))
            ml_jraise(f->r, "ValueError", "expected ':' after conversion specifier");
        if (p[1] == 's') {
            v = ml_jval_str(f->r, v);
        } else {
            ml_jval_repr(f->r, &repr, v);
            v = ml_jbuf_value(f->r, &repr);
        }
        p += 2;
    }
    if (p < end) {
        if (++f->depth > 2)
            ml_jraise(f->r, "ValueError", "Max string recursion exceeded");
        expand(f, &spec_text, (ml_str){ p + 1, (size_t)(end - p - 1) });
        f->depth--;
    }
    format_value(f->r, b, v, (ml_str){ spec_text.ptr, spec_text.len }, f->markup);
}

/* The length of a field behind its brace, up to the brace that closes it. */
static size_t field_length(ml_jrun *r, const char *p, const char *end) {
    int depth = 1;

    for (const char *q = p; q < end; q++) {
        depth += *q == '{' ? 1 : *q == '}' ? -1 : 0;
        if (!depth)
            return (size_t)(q - p);
    }
    ml_jraise(r, "ValueError",
              p == end ? "Single '{' encountered in format string"
                       : "expected '}' before end of string");
}

static void expand(braces *f, ml_jbuf *b, ml_str text) {
    const char *p = text.ptr, *end = p + text.len;

    while (p < end) {
        char c = *p++;
        size_t n;
        if (c != '{' && c != '}') {
            ml_jbuf_add(f->r, b, p - 1, 1);
        } else if (p < end && *p == c) {
            ml_jbuf_add(f->r, b, p++, 1);
        } else if (c == '}') {
            ml_jraise(f->r, "ValueError", "Single '}' encountered in format string");
        } else {
            n = field_length(f->r, p, end);
            put_field(f, b, (ml_str){ p, n });
            p += n + 1;
        }
    }
}

ml_jval ml_jformat_braces(ml_jrun *r, ml_jval text, const ml_jargs *a) {
    braces f = { .r = r, .args = a, .markup = text.s->markup };
    ml_jbuf b = { 0 };

    expand(&f, &b, ml_jstr_get(text));
    return ml_jstr_mark(r, ml_jbuf_value(r, &b), f.markup);
}
