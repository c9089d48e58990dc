#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* A recursive-descent parser that validates, decodes and builds in one pass.  Functions
 * return false after fail() has written the message. */
typedef struct parser {
    const unsigned char *begin, *p, *end;
    const unsigned char *line_begin;
    uint32_t line;
    int depth;
    bool python; /* accept Infinity and NaN as numbers */
    ml_arena *arena;
    const char *name;
    ml_err *err;
} parser;

__attribute__((format(printf, 3, 4))) static bool fail(parser *s, const unsigned char *at,
                                                       const char *fmt, ...) {
    char what[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ml_fail(s->err, ML_EFORMAT, "%s:%u:%u: %s", s->name, (unsigned)s->line,
            (unsigned)(at - s->line_begin) + 1, what);
    return false;
}

static bool fail_expected(parser *s, const char *expected) {
    int c = s->p < s->end ? *s->p : -1;

    if (c < 0)
        return fail(s, s->p, "expected %s, but the text ends here", expected);
    if (c > 0x20 && c < 0x7f)
        return fail(s, s->p, "expected %s, found '%c'", expected, c);
    return fail(s, s->p, "expected %s, found byte 0x%02x", expected, (unsigned)c);
}

static int peek(const parser *s) {
    return s->p < s->end ? *s->p : -1;
}

static void skip_space(parser *s) {
    for (; s->p < s->end; s->p++) {
        if (*s->p == '\n') {
            s->line++;
            s->line_begin = s->p + 1;
        } else if (*s->p != ' ' && *s->p != '\t' && *s->p != '\r') {
            return;
        }
    }
}

/* --- strings ---------------------------------------------------------------- */

static unsigned char *put(unsigned char *out, uint32_t c) {
    return out + ml_utf8_put((char *)out, c);
}

/* The four digits of \uXXXX at p, or -1. */
static int32_t hex4(const unsigned char *p, const unsigned char *end) {
    int32_t v = 0;

    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i], digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            digit = (c | 32) - 'a' + 10;
        else
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* \uXXXX, or a surrogate pair; p is after the backslash. */
static bool unicode_escape(parser *s, unsigned char **out) {
    int32_t c = hex4(s->p + 1, s->end), low = -1;

    if (c < 0)
        return fail(s, s->p, "\\u must be followed by four hexadecimal digits");
    s->p += 5;
    if (c < 0xd800 || c > 0xdfff) {
        *out = put(*out, (uint32_t)c);
        return true;
    }
    if (c < 0xdc00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u')
        low = hex4(s->p + 2, s->end);
    if (low < 0xdc00 || low > 0xdfff)
        return fail(s, s->p - 6, "\\u%04x is an unpaired surrogate", (unsigned)c);
    s->p += 6;
    *out = put(*out, 0x10000u + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00));
    return true;
}

static bool escape(parser *s, unsigned char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = *s->p;
    const char *hit = c ? strchr(from, c) : NULL;

    if (c == 'u')
        return unicode_escape(s, out);
    if (!hit)
        return fail_expected(s, "one of \" \\ / b f n r t u after the backslash");
    *(*out)++ = (unsigned char)to[hit - from];
    s->p++;
    return true;
}

/* Finds the closing quote and checks every byte on the way. */
static bool scan_string(parser *s, bool *has_escape) {
    for (;;) {
        int c;
        while (s->p < s->end && *s->p >= 0x20 && *s->p < 0x80 && *s->p != '"' &&
               *s->p != '\\')
            s->p++;
        c = peek(s);
        if (c == '"')
            return true;
        if (c < 0)
            return fail(s, s->p, "unterminated string");
        if (c < 0x20)
            return fail(s, s->p, "control byte 0x%02x inside a string must be escaped",
                        (unsigned)c);
        if (c == '\\') {
            *has_escape = true;
            s->p += s->end - s->p > 1 ? 2 : 1;
        } else {
            int n = ml_utf8_look((const char *)s->p, (size_t)(s->end - s->p));
            if (n < 1)
                return fail(s, s->p, "byte 0x%02x is not valid UTF-8 here", (unsigned)c);
            s->p += n;
        }
    }
}

static bool decode_string(parser *s, const unsigned char *close, ml_str *out) {
    /* No escape is shorter than its decoded form. */
    unsigned char *copy = ml_arena_take(s->arena, (size_t)(close - s->p), 1), *to = copy;

    while (s->p < close) {
        if (*s->p != '\\') {
            *to++ = *s->p++;
            continue;
        }
        s->p++;
        if (!escape(s, &to))
            return false;
    }
    *out = (ml_str){ (const char *)copy, (size_t)(to - copy) };
    return true;
}

/* Most strings have no escape and remain views of the source; the others are decoded into
 * the arena. */
static bool string(parser *s, ml_str *out) {
    const unsigned char *begin = ++s->p, *close;
    bool has_escape = false;

    if (!scan_string(s, &has_escape))
        return false;
    close = s->p;
    *out = (ml_str){ (const char *)begin, (size_t)(close - begin) };
    if (has_escape) {
        s->p = begin;
        if (!decode_string(s, close, out))
            return false;
    }
    s->p = close + 1;
    return true;
}

/* --- other values ------------------------------------------------------------ */

static bool digits(parser *s, const char *where) {
    if (peek(s) < '0' || peek(s) > '9')
        return fail_expected(s, where);
    while (peek(s) >= '0' && peek(s) <= '9')
        s->p++;
    return true;
}

static bool number(parser *s, ml_str *out) {
    const unsigned char *begin = s->p;

    if (peek(s) == '-')
        s->p++;
    if (peek(s) == '0') {
        s->p++;
        if (peek(s) >= '0' && peek(s) <= '9')
            return fail(s, begin, "a number must not begin with a zero");
    } else if (!digits(s, "a digit after the minus sign")) {
        return false;
    }
    if (peek(s) == '.') {
        s->p++;
        if (!digits(s, "a digit after the decimal point"))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->p++;
        if (peek(s) == '+' || peek(s) == '-')
            s->p++;
        if (!digits(s, "a digit of the exponent"))
            return false;
    }
    *out = (ml_str){ (const char *)begin, (size_t)(s->p - begin) };
    return true;
}

static bool word(parser *s, const char *text) {
    size_t n = strlen(text);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n) != 0)
        return fail_expected(s, "a value");
    s->p += n;
    return true;
}

static bool value(parser *s, ml_json *v);

static bool member_name(parser *s, ml_json *v) {
    skip_space(s);
    if (peek(s) != '"')
        return fail_expected(s, "a member name in double quotes");
    if (!string(s, &v->key))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return fail_expected(s, "':' after the member name");
    s->p++;
    return true;
}

/* Parses both kinds of container: they differ in their last byte and in member names. */
static bool children(parser *s, ml_json *v) {
    bool is_object = v->type == ML_JSON_OBJECT;
    int close = is_object ? '}' : ']';
    const ml_json **link = &v->child;

    if (++s->depth > ML_JSON_DEPTH)
        return fail(s, s->p, "values are nested deeper than %d levels", ML_JSON_DEPTH);
    s->p++;
    skip_space(s);
    if (peek(s) != close) {
        for (;;) {
            ml_json *c = ML_NEW(s->arena, ml_json, 1);
            if ((is_object && !member_name(s, c)) || !value(s, c))
                return false;
            *link = c;
            link = &c->next;
            v->n++;
            skip_space(s);
            if (peek(s) != ',')
                break;
            s->p++;
        }
        if (peek(s) != close)
            return fail_expected(s, is_object ? "',' or '}'" : "',' or ']'");
    }
    s->p++;
    s->depth--;
    return true;
}

/* The words that Python's json writes for non-finite numbers. */
static bool python_number(parser *s, ml_json *v) {
    static const char *const words[] = { "Infinity", "-Infinity", "NaN" };

    for (size_t i = 0; s->python && i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) < n || memcmp(s->p, words[i], n) != 0)
            continue;
        v->type = ML_JSON_NUMBER;
        v->text = (ml_str){ (const char *)s->p, n };
        s->p += n;
        return true;
    }
    return false;
}

static bool value_body(parser *s, ml_json *v) {
    if (python_number(s, v))
        return true;
    switch (peek(s)) {
    case '{': v->type = ML_JSON_OBJECT; return children(s, v);
    case '[': v->type = ML_JSON_ARRAY; return children(s, v);
    case '"': v->type = ML_JSON_STRING; return string(s, &v->text);
    case 't': v->type = ML_JSON_TRUE; return word(s, "true");
    case 'f': v->type = ML_JSON_FALSE; return word(s, "false");
    case 'n': v->type = ML_JSON_NULL; return word(s, "null");
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': v->type = ML_JSON_NUMBER; return number(s, &v->text);
    default: return fail_expected(s, "a value");
    }
}

static bool value(parser *s, ml_json *v) {
    skip_space(s);
    v->line = s->line;
    v->column = (uint32_t)(s->p - s->line_begin) + 1;
    v->begin = (size_t)(s->p - s->begin);
    if (!value_body(s, v))
        return false;
    v->end = (size_t)(s->p - s->begin);
    return true;
}

static bool document(parser *s, ml_json *v) {
    if (s->end - s->p >= 3 && memcmp(s->p, "\xef\xbb\xbf", 3) == 0)
        s->p += 3;
    s->line_begin = s->p;
    if (!value(s, v))
        return false;
    skip_space(s);
    return s->p == s->end || fail_expected(s, "end of input");
}

static ml_status parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                       bool python, ml_err *err) {
    const unsigned char *begin = (const unsigned char *)(src.len ? src.ptr : "");
    parser s = { .begin = begin,
                 .p = begin,
                 .end = begin + src.len,
                 .line = 1,
                 .python = python,
                 .arena = a,
                 .name = name,
                 .err = err };
    ml_json *v;

    if (src.len > INT32_MAX) /* counts, lines and columns are 32 bits wide */
        return ml_fail(err, ML_EUNSUP, "%s: %zu bytes of JSON exceed the limit of 2 GiB",
                       name, src.len);
    v = ML_NEW(a, ml_json, 1);
    if (!document(&s, v))
        return ML_EFORMAT;
    *out = v;
    return ML_OK;
}

ml_status ml_json_parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                        ml_err *err) {
    return parse(out, a, src, name, false, err);
}

ml_status ml_json_parse_python(const ml_json **out, ml_arena *a, ml_str src,
                               const char *name, ml_err *err) {
    return parse(out, a, src, name, true, err);
}

/* --- accessors --------------------------------------------------------------- */

const ml_json *ml_json_get(const ml_json *obj, const char *key) {
    const ml_json *found = NULL;

    if (!obj || obj->type != ML_JSON_OBJECT)
        return NULL;
    for (const ml_json *m = obj->child; m; m = m->next)
        if (ml_str_is(m->key, key))
            found = m;
    return found;
}

bool ml_json_i64(const ml_json *v, int64_t *out) {
    bool negative;
    int64_t n = 0;

    if (!v || v->type != ML_JSON_NUMBER)
        return false;
    negative = v->text.ptr[0] == '-';
    /* Accumulated as a negative number, because INT64_MIN has no positive counterpart. */
    for (size_t i = negative; i < v->text.len; i++) {
        int c = v->text.ptr[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_sub_overflow(n, c - '0', &n))
            return false;
    }
    if (!negative && n == INT64_MIN)
        return false;
    *out = negative ? n : -n;
    return true;
}

bool ml_json_f64(const ml_json *v, double *out) {
    ml_text copy = { 0 }; /* strtod needs a NUL, the source has none */
    double d;

    if (!v || v->type != ML_JSON_NUMBER)
        return false;
    ml_text_add(&copy, v->text.ptr, v->text.len);
    d = strtod(copy.ptr, NULL);
    ml_text_release(&copy);
    if (!isfinite(d))
        return false;
    *out = d;
    return true;
}

const char *ml_json_what(const ml_json *v) {
    static const char *const names[] = {
        [ML_JSON_NULL] = "null",        [ML_JSON_FALSE] = "false",
        [ML_JSON_TRUE] = "true",        [ML_JSON_NUMBER] = "a number",
        [ML_JSON_STRING] = "a string",  [ML_JSON_ARRAY] = "an array",
        [ML_JSON_OBJECT] = "an object",
    };
    return names[v->type];
}

void ml_json_number(ml_text *t, double x) {
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    ml_text_printf(t, "%s", text);
}

/* Bytes from i on that need no escape; a loop over whole blocks becomes vector code. */
static size_t plain_bytes(ml_str s, size_t i) {
    enum { BLOCK = 32 };
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t begin = i;

    for (; s.len - i >= BLOCK; i += BLOCK) {
        unsigned char found = 0;
        for (size_t k = 0; k < BLOCK; k++)
            found |=
                (unsigned char)((p[i + k] < 0x20) | (p[i + k] == '"') | (p[i + k] == '\\'));
        if (found)
            break;
    }
    while (i < s.len && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\')
        i++;
    return i - begin;
}

void ml_json_quote(ml_text *t, ml_str s) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t run = 0; /* start of the bytes not yet written */

    ml_text_add(t, "\"", 1);
    for (size_t i = plain_bytes(s, 0); i < s.len; i += 1 + plain_bytes(s, i + 1)) {
        unsigned char c = (unsigned char)s.ptr[i];
        const char *hit;
        ml_text_add(t, s.ptr + run, i - run);
        run = i + 1;
        hit = c ? strchr(from, c) : NULL;
        if (hit)
            ml_text_printf(t, "\\%c", to[hit - from]);
        else
            ml_text_printf(t, "\\u%04x", (unsigned)c);
    }
    if (run < s.len)
        ml_text_add(t, s.ptr + run, s.len - run);
    ml_text_add(t, "\"", 1);
}
