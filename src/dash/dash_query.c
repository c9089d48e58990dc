/* The query of a request, and texts in replies. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "dash/dash_priv.h"

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* %XX and + decoded; a NUL ends the text. */
static char *decode(ml_arena *a, const char *s, size_t n) {
    char *out = ml_arena_str(a, s, n), *to = out;

    for (size_t i = 0; i < n; i++) {
        int high = i + 2 < n && s[i] == '%' ? hex(s[i + 1]) : -1,
            low = high >= 0 ? hex(s[i + 2]) : -1;
        if (low >= 0) {
            *to++ = (char)(16 * high + low);
            i += 2;
        } else {
            *to++ = s[i] == '+' ? ' ' : s[i];
        }
    }
    *to = 0;
    return out;
}

const char *ml_dash_param(const ml_dash_request *r, const char *name) {
    const char *at = r->query.ptr, *end = at + r->query.len;
    size_t n = strlen(name);

    while (at < end) {
        const char *next = memchr(at, '&', (size_t)(end - at));
        next = next ? next : end;
        if ((size_t)(next - at) > n && memcmp(at, name, n) == 0 && at[n] == '=')
            return decode(r->arena, at + n + 1, (size_t)(next - at) - n - 1);
        at = next + 1;
    }
    return NULL;
}

ml_status ml_dash_param_int(const ml_dash_request *r, const char *name, int64_t low,
                            int64_t high, int64_t *inout, ml_err *err) {
    const char *s = ml_dash_param(r, name);
    char *end;
    long long x;

    if (!s || !*s)
        return ML_OK;
    errno = 0;
    x = strtoll(s, &end, 10);
    if (*end || errno || x < low || x > high)
        return ml_fail(err, ML_EUSAGE, "%s: expected a whole number from %lld to %lld",
                       name, (long long)low, (long long)high);
    *inout = x;
    return ML_OK;
}

ml_status ml_dash_param_number(const ml_dash_request *r, const char *name, double *inout,
                               ml_err *err) {
    const char *s = ml_dash_param(r, name);
    char *end;
    double x;

    if (!s || !*s)
        return ML_OK;
    x = strtod(s, &end);
    if (*end || !isfinite(x))
        return ml_fail(err, ML_EUSAGE, "%s: expected a number", name);
    *inout = x;
    return ML_OK;
}

bool ml_dash_param_bool(const ml_dash_request *r, const char *name) {
    const char *s = ml_dash_param(r, name);
    return s && (strcmp(s, "1") == 0 || strcmp(s, "true") == 0 || strcmp(s, "True") == 0);
}

/* --- texts in replies --------------------------------------------------------------------- */

void ml_dash_put_text(ml_json_out *o, const char *key, ml_str s) {
    ml_text clean = { 0 };

    while (s.len) {
        size_t n = ml_utf8_valid(s), bad = 0;
        ml_text_add(&clean, s.ptr, n);
        s = (ml_str){ s.ptr + n, s.len - n };
        if (s.len) {
            int k = ml_utf8_look(s.ptr, s.len);
            bad = k < 0 ? (size_t)-k : s.len;
            ml_text_add(&clean, "\xEF\xBF\xBD", 3);
        }
        s = (ml_str){ s.ptr + bad, s.len - bad };
    }
    if (key)
        ml_json_key(o, key);
    ml_json_str(o, (ml_str){ clean.ptr ? clean.ptr : "", clean.len });
    ml_text_release(&clean);
}

void ml_dash_put_number(ml_json_out *o, const char *key, double x) {
    if (key)
        ml_json_key(o, key);
    if (isfinite(x))
        ml_json_exact(o, x);
    else
        ml_json_null(o);
}
