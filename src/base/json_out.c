#include "base/json_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json.h"

static void before_value(ml_json_out *o) {
    if (o->comma)
        ml_text_add(o->to, ", ", 2);
    o->comma = true;
}

void ml_json_begin(ml_json_out *o, char bracket) {
    before_value(o);
    ml_text_add(o->to, &bracket, 1);
    o->comma = false;
}

void ml_json_end(ml_json_out *o, char bracket) {
    ml_text_add(o->to, &bracket, 1);
    o->comma = true;
}

void ml_json_key(ml_json_out *o, const char *key) {
    before_value(o);
    ml_json_quote(o->to, ml_str_of(key));
    ml_text_add(o->to, ": ", 2);
    o->comma = false;
}

void ml_json_str(ml_json_out *o, ml_str s) {
    before_value(o);
    ml_json_quote(o->to, s.ptr ? s : ml_str_of(""));
}

void ml_json_word(ml_json_out *o, const char *s) {
    if (s)
        ml_json_str(o, ml_str_of(s));
    else
        ml_json_null(o);
}

/* Not snprintf: streams write lists of token ids for each token. */
static void write_whole(ml_json_out *o, uint64_t v, bool negative) {
    char digits[24], *end = digits + sizeof digits, *p = end;

    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    if (negative)
        *--p = '-';
    before_value(o);
    ml_text_add(o->to, p, (size_t)(end - p));
}

void ml_json_int(ml_json_out *o, int64_t v) {
    write_whole(o, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0);
}

void ml_json_unsigned(ml_json_out *o, uint64_t v) {
    write_whole(o, v, false);
}

static void number(ml_json_out *o, double v, int precision) {
    char digits[40];
    int n;

    if (!isfinite(v)) {
        ml_json_null(o);
        return;
    }
    n = snprintf(digits, sizeof digits, "%.*g", precision, v);
    before_value(o);
    ml_text_add(o->to, digits, (size_t)n);
}

void ml_json_float(ml_json_out *o, float v) {
    number(o, (double)v, 9);
}

void ml_json_double(ml_json_out *o, double v) {
    number(o, v, 6);
}

void ml_json_exact(ml_json_out *o, double v) {
    number(o, v, 17);
}

void ml_json_bool(ml_json_out *o, bool v) {
    before_value(o);
    ml_text_add(o->to, v ? "true" : "false", v ? 4 : 5);
}

void ml_json_null(ml_json_out *o) {
    before_value(o);
    ml_text_add(o->to, "null", 4);
}

void ml_json_raw(ml_json_out *o, ml_str json) {
    before_value(o);
    ml_text_add(o->to, json.ptr, json.len);
}

void ml_json_ids(ml_json_out *o, const int32_t *id, int32_t n) {
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n; i++)
        ml_json_int(o, id[i]);
    ml_json_end(o, ']');
}

void ml_json_floats(ml_json_out *o, const float *v, int32_t n) {
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n; i++)
        ml_json_float(o, v[i]);
    ml_json_end(o, ']');
}

void ml_json_put_str(ml_json_out *o, const char *key, ml_str s) {
    ml_json_key(o, key);
    ml_json_str(o, s);
}

void ml_json_put_word(ml_json_out *o, const char *key, const char *s) {
    ml_json_key(o, key);
    ml_json_word(o, s);
}

void ml_json_put_int(ml_json_out *o, const char *key, int64_t v) {
    ml_json_key(o, key);
    ml_json_int(o, v);
}

void ml_json_put_float(ml_json_out *o, const char *key, float v) {
    ml_json_key(o, key);
    ml_json_float(o, v);
}

void ml_json_put_bool(ml_json_out *o, const char *key, bool v) {
    ml_json_key(o, key);
    ml_json_bool(o, v);
}

/* --- parsed values ----------------------------------------------------------- */

void ml_json_write(ml_text *t, const ml_json *v) {
    static const char *const words[] = {
        [ML_JSON_NULL] = "null", [ML_JSON_FALSE] = "false", [ML_JSON_TRUE] = "true"
    };

    if (v->type == ML_JSON_STRING) {
        ml_json_quote(t, v->text);
    } else if (v->type == ML_JSON_NUMBER) {
        ml_text_add(t, v->text.ptr, v->text.len);
    } else if (v->type < ML_JSON_NUMBER) {
        ml_text_printf(t, "%s", words[v->type]);
    } else {
        bool object = v->type == ML_JSON_OBJECT;
        ml_text_add(t, object ? "{" : "[", 1);
        for (const ml_json *c = v->child; c; c = c->next) {
            if (object)
                ml_json_quote(t, c->key);
            ml_text_add(t, ": ", object ? 2 : 0);
            ml_json_write(t, c);
            ml_text_add(t, ", ", c->next ? 2 : 0);
        }
        ml_text_add(t, object ? "}" : "]", 1);
    }
}
