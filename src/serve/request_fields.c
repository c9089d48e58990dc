#include "serve/request_fields.h"

#include <string.h>

#include "base/bug.h"

bool ml_json_is_bool(const ml_json *v) {
    return v->type == ML_JSON_TRUE || v->type == ML_JSON_FALSE;
}

/* An empty value: null, false, 0, "", [] or {}. */
static bool is_nothing(const ml_json *v) {
    double d;

    switch (v->type) {
    case ML_JSON_NULL:
    case ML_JSON_FALSE: return true;
    case ML_JSON_TRUE: return false;
    case ML_JSON_NUMBER: return ml_json_f64(v, &d) && d == 0;
    case ML_JSON_STRING: return v->text.len == 0;
    case ML_JSON_ARRAY:
    case ML_JSON_OBJECT: return v->n == 0;
    }
    return false;
}

static ml_status wrong_type(const char *where, const ml_field *f, const char *want,
                            const ml_json *v, ml_err *err) {
    return ml_fail(err, ML_EUSAGE, "%s: \"%s\" is %s; expected %s", where, f->name,
                   ml_json_what(v), want);
}

static ml_status out_of_bounds(const char *where, const ml_field *f, const ml_json *v,
                               ml_err *err) {
    return ml_fail(err, ML_EUSAGE, "%s: \"%s\" is %.*s; expected %g to %g", where, f->name,
                   (int)(v->text.len < 40 ? v->text.len : 40), v->text.ptr, f->min, f->max);
}

static bool within(const ml_field *f, double v) {
    return !(f->min < f->max) || (v >= f->min && v <= f->max);
}

static ml_status read_i32(int32_t *out, const ml_field *f, const ml_json *v,
                          const char *where, ml_err *err) {
    int64_t i;

    if (!ml_json_i64(v, &i))
        return wrong_type(where, f, "a whole number", v, err);
    if (i < INT32_MIN || i > INT32_MAX || !within(f, (double)i))
        return out_of_bounds(where, f, v, err);
    *out = (int32_t)i;
    return ML_OK;
}

static ml_status read_f32(float *out, const ml_field *f, const ml_json *v,
                          const char *where, ml_err *err) {
    double d;

    if (!ml_json_f64(v, &d))
        return wrong_type(where, f, "a number", v, err);
    if (!within(f, d))
        return out_of_bounds(where, f, v, err);
    *out = (float)d;
    return ML_OK;
}

static ml_status read_one(void *out, const ml_field *f, const ml_json *v, const char *where,
                          ml_err *err) {
    void *field = (char *)out + f->at;

    switch (f->type) {
    case ML_FIELD_BOOL:
        if (!ml_json_is_bool(v))
            return wrong_type(where, f, "true or false", v, err);
        *(bool *)field = v->type == ML_JSON_TRUE;
        return ML_OK;
    case ML_FIELD_I32: return read_i32(field, f, v, where, err);
    case ML_FIELD_F32: return read_f32(field, f, v, where, err);
    case ML_FIELD_STR:
        if (v->type != ML_JSON_STRING)
            return wrong_type(where, f, "a string", v, err);
        if (v->text.len && memchr(v->text.ptr, 0, v->text.len))
            return ml_fail(err, ML_EUSAGE, "%s: \"%s\" contains a NUL character", where,
                           f->name);
        *(ml_str *)field = v->text;
        return ML_OK;
    case ML_FIELD_JSON: *(const ml_json **)field = v; return ML_OK;
    case ML_FIELD_IGNORE: return ML_OK;
    case ML_FIELD_REFUSE:
        if (is_nothing(v))
            return ML_OK;
        return ml_fail(err, ML_EUNSUP, "%s: \"%s\" is not supported: %s", where, f->name,
                       f->why);
    case ML_FIELD_MORE: break;
    }
    ML_BUG_IF(true);
    return ML_OK;
}

static const ml_field *find(const ml_field *rows, ml_str name) {
    const ml_field *found = NULL;

    for (const ml_field *f = rows; f->name && !found; f++)
        if (f->type == ML_FIELD_MORE)
            found = find(f->more, name);
        else if (ml_str_is(name, f->name))
            found = f;
    return found;
}

/* The supported field whose name has the smallest edit distance, if below *best. */
static const ml_field *nearest(const ml_field *rows, ml_str name, int *best) {
    const ml_field *near = NULL, *inner;

    for (const ml_field *f = rows; f->name; f++) {
        int d = ml_str_distance(name, ml_str_of(f->name));
        if (f->type == ML_FIELD_MORE) {
            inner = nearest(f->more, name, best);
            near = inner ? inner : near;
        } else if (d < *best && f->type != ML_FIELD_REFUSE) {
            near = f;
            *best = d;
        }
    }
    return near;
}

static ml_status unknown(const ml_field *rows, const ml_json *v, const char *where,
                         ml_err *err) {
    int best = 2 + (int)v->key.len / 4;
    const ml_field *near = nearest(rows, v->key, &best);

    return ml_fail(err, ML_EUSAGE, "%s: unknown field \"%.*s\"%s%s%s", where,
                   (int)(v->key.len < 60 ? v->key.len : 60), v->key.ptr,
                   near ? "; did you mean \"" : "", near ? near->name : "",
                   near ? "\"?" : "");
}

ml_status ml_fields_read(void *out, const ml_field *rows, const ml_json *object,
                         const char *where, ml_err *err) {
    ml_status st = ML_OK;

    if (object->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EUSAGE, "%s is %s; expected an object", where,
                       ml_json_what(object));
    for (const ml_json *v = object->child; v && st == ML_OK; v = v->next) {
        const ml_field *f = find(rows, v->key);
        if (!f)
            st = unknown(rows, v, where, err);
        else if (v->type != ML_JSON_NULL)
            st = read_one(out, f, v, where, err);
    }
    return st;
}

ml_str ml_str_keep(ml_arena *a, ml_str s) {
    return (ml_str){ ml_arena_str(a, s.len ? s.ptr : "", s.len), s.len };
}

ml_status ml_count_check(const ml_json *v, int32_t max, const char *where, ml_err *err) {
    if (v->n <= max)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE, "%s has %d elements; expected at most %d", where,
                   (int)v->n, (int)max);
}

static ml_status read_string(ml_str *out, const ml_json *v, const char *where, ml_arena *a,
                             ml_err *err) {
    if (v->type != ML_JSON_STRING || v->text.len == 0)
        return ml_fail(err, ML_EUSAGE, "%s: expected a non-empty string, or a list of them",
                       where);
    if (v->text.len > ML_MAX_STRING)
        return ml_fail(err, ML_EUSAGE, "%s: a string has %zu bytes; expected at most %d",
                       where, v->text.len, ML_MAX_STRING);
    *out = ml_str_keep(a, v->text);
    return ML_OK;
}

ml_status ml_strings_read(const ml_str **out, int32_t *n, const ml_json *v, int32_t max,
                          const char *where, ml_arena *a, ml_err *err) {
    bool list = v && v->type == ML_JSON_ARRAY;
    int32_t count = !v ? 0 : list ? v->n : 1;
    ml_status st = list ? ml_count_check(v, max, where, err) : ML_OK;
    ml_str *s;

    *n = 0;
    if (st)
        return st;
    *out = s = ML_NEW(a, ml_str, count + 1);
    *n = count;
    if (v && !list)
        return read_string(s, v, where, a, err);
    for (const ml_json *c = v ? v->child : NULL; c && st == ML_OK; c = c->next)
        st = read_string(s++, c, where, a, err);
    return st;
}

ml_status ml_ids_read(const int32_t **out, int32_t *n, const ml_json *v, int32_t n_vocab,
                      int32_t max, const char *where, ml_arena *a, ml_err *err) {
    int32_t *id;

    *n = 0;
    *out = NULL;
    if (!v)
        return ML_OK;
    if (v->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EUSAGE, "%s is %s; expected a list of token ids", where,
                       ml_json_what(v));
    if (ml_count_check(v, max, where, err))
        return ML_EUSAGE;
    *out = id = ML_NEW(a, int32_t, (size_t)v->n + 1);
    for (const ml_json *c = v->child; c; c = c->next) {
        int64_t x;
        if (!ml_json_i64(c, &x) || x < 0 || x >= n_vocab)
            return ml_fail(
                err, ML_EUSAGE,
                "%s: element %d is not a token id; expected a whole number from 0 to %d",
                where, (int)*n, (int)n_vocab - 1);
        id[(*n)++] = (int32_t)x;
    }
    return ML_OK;
}
