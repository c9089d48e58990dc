#include "io/hf_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

ml_status ml_hf_config_open(ml_hf_config *c, ml_arena *a, ml_str text, const char *path,
                            ml_err *err) {
    ml_status st;

    *c = (ml_hf_config){ .arena = a, .path = path };
    st = ml_json_parse_python(&c->root, a, text, path, err);
    if (st != ML_OK)
        return st;
    if (c->root->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "%s: expected an object of settings, found %s",
                       path, ml_json_what(c->root));
    c->seen = ML_NEW(a, bool, c->root->n);
    return ML_OK;
}

void ml_hf_config_fail(ml_hf_config *c, ml_status code, const char *fmt, ...) {
    va_list ap;
    if (c->first.code != ML_OK)
        return;
    c->first.code = code;
    va_start(ap, fmt);
    vsnprintf(c->first.msg, sizeof c->first.msg, fmt, ap);
    va_end(ap);
}

static bool is_listed(ml_str key, const char *const *list) {
    for (; *list; list++)
        if (ml_str_is(key, *list))
            return true;
    return false;
}

ml_status ml_hf_config_check(ml_hf_config *c, const char *const *ignored, ml_err *err) {
    const ml_json *m = c->root->child;

    if (c->first.code != ML_OK)
        return ml_fail(err, c->first.code, "%s", c->first.msg);
    for (int32_t i = 0; i < c->root->n; i++, m = m->next)
        if (!c->seen[i] && m->type != ML_JSON_NULL && !is_listed(m->key, ignored))
            ml_log(ML_LOG_WARN, "%s:%u: unknown key \"%.*s\" has no effect", c->path,
                   m->line, (int)m->key.len, m->key.ptr);
    return ML_OK;
}

bool ml_hf_config_enter(ml_hf_config *c, const char *key) {
    const ml_json *inner = ml_json_get(c->root, key);

    if (!inner || inner->type != ML_JSON_OBJECT)
        return false;
    c->outer = c->root;
    c->root = inner;
    c->seen = ML_NEW(c->arena, bool, inner->n + 1);
    return true;
}

/* A key with a dot: a member of the object before it. */
static const ml_json *in_object(ml_hf_config *c, const char *key) {
    const char *dot = strrchr(key, '.');

    return ml_json_get(
        ml_hf_config_get(c, ml_arena_str(c->arena, key, (size_t)(dot - key))), dot + 1);
}

const ml_json *ml_hf_config_get(ml_hf_config *c, const char *key) {
    const ml_json *m = c->root->child, *found = NULL;

    for (int32_t i = 0; i < c->root->n; i++, m = m->next)
        if (ml_str_is(m->key, key)) {
            c->seen[i] = true;
            found = m;
        }
    if (c->outer && !strcmp(key, "tie_word_embeddings")) {
        m = ml_json_get(c->outer, key);
        found = m ? m : found;
    }
    if (!found && strchr(key, '.'))
        found = in_object(c, key);
    return found && found->type != ML_JSON_NULL ? found : NULL;
}

/* A value in a message: a number as written, anything else by its type. */
static ml_str as_text(const ml_json *v) {
    return v->type == ML_JSON_NUMBER ? v->text : ml_str_of(ml_json_what(v));
}

int64_t ml_hf_config_int(ml_hf_config *c, const char *key, int64_t def, int64_t min,
                         int64_t max) {
    const ml_json *v = ml_hf_config_get(c, key);
    int64_t n;

    if (!v) {
        if (def != ML_HF_REQUIRED)
            return def;
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: key \"%s\" is missing; expected an integer from %lld "
                          "to %lld",
                          c->path, key, (long long)min, (long long)max);
        return min;
    }
    if (!ml_json_i64(v, &n) || n < min || n > max) {
        ml_str text = as_text(v);
        ml_hf_config_fail(
            c, ML_EFORMAT, "%s:%u: \"%s\" is %.*s; expected an integer from %lld to %lld",
            c->path, v->line, key, (int)text.len, text.ptr, (long long)min, (long long)max);
        return min;
    }
    return n;
}

bool ml_hf_config_bool(ml_hf_config *c, const char *key, bool def) {
    const ml_json *v = ml_hf_config_get(c, key);

    if (!v)
        return def;
    if (v->type != ML_JSON_TRUE && v->type != ML_JSON_FALSE)
        ml_hf_config_fail(c, ML_EFORMAT, "%s:%u: \"%s\" is %s; expected true or false",
                          c->path, v->line, key, ml_json_what(v));
    return v->type == ML_JSON_TRUE;
}

static double number(ml_hf_config *c, const ml_json *v, const char *where, const char *key,
                     double def, double min, double max) {
    double x;

    if (!v || v->type == ML_JSON_NULL) {
        if (!isnan(def))
            return def;
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: key \"%s%s\" is missing; expected a number from %g to %g",
                          c->path, where, key, min, max);
        return min;
    }
    if (!ml_json_f64(v, &x) || x < min || x > max) {
        ml_str text = as_text(v);
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"%s%s\" is %.*s; expected a number from %g to %g",
                          c->path, v->line, where, key, (int)text.len, text.ptr, min, max);
        return min;
    }
    return x;
}

static const char *string(ml_hf_config *c, const ml_json *v, const char *where,
                          const char *key, const char *def) {
    if (!v || v->type == ML_JSON_NULL)
        return def;
    if (v->type != ML_JSON_STRING) {
        ml_hf_config_fail(c, ML_EFORMAT, "%s:%u: \"%s%s\" is %s; expected a string",
                          c->path, v->line, where, key, ml_json_what(v));
        return def;
    }
    return ml_arena_str(c->arena, v->text.ptr, v->text.len);
}

double ml_hf_config_num(ml_hf_config *c, const char *key, double def, double min,
                        double max) {
    return number(c, ml_hf_config_get(c, key), "", key, def, min, max);
}

const char *ml_hf_config_str(ml_hf_config *c, const char *key, const char *def) {
    return string(c, ml_hf_config_get(c, key), "", key, def);
}

double ml_hf_config_num_in(ml_hf_config *c, const ml_json *obj, const char *where,
                           const char *key, double def, double min, double max) {
    return number(c, ml_json_get(obj, key), where, key, def, min, max);
}

const char *ml_hf_config_str_in(ml_hf_config *c, const ml_json *obj, const char *where,
                                const char *key, const char *def) {
    return string(c, ml_json_get(obj, key), where, key, def);
}
