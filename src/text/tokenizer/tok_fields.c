/* Reads fields of tokenizer.json, with error messages for invalid ones. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer/tok_load.h"

ml_status ml_tok_bad(ml_tok_loader *l, ml_status code, const ml_json *at, const char *fmt,
                     ...) {
    char what[700];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!at)
        return ml_fail(l->err, code, "%s: %s", l->t->name, what);
    return ml_fail(l->err, code, "%s:%u: %s", l->t->name, (unsigned)at->line, what);
}

bool ml_tok_is_null(const ml_json *v) {
    return !v || v->type == ML_JSON_NULL;
}

ml_status ml_tok_get_bool(ml_tok_loader *l, const ml_json *obj, const char *key,
                          bool absent, bool *out) {
    const ml_json *v = ml_json_get(obj, key);

    *out = ml_tok_is_null(v) ? absent : v->type == ML_JSON_TRUE;
    if (!ml_tok_is_null(v) && v->type != ML_JSON_TRUE && v->type != ML_JSON_FALSE)
        return ml_tok_bad(l, ML_EFORMAT, v, "\"%s\" must be true or false, not %s", key,
                          ml_json_what(v));
    return ML_OK;
}

ml_status ml_tok_get_str(ml_tok_loader *l, const ml_json *obj, const char *key,
                         ml_str *out) {
    const ml_json *v = ml_json_get(obj, key);

    *out = (ml_str){ 0 };
    if (ml_tok_is_null(v))
        return ML_OK;
    if (v->type != ML_JSON_STRING)
        return ml_tok_bad(l, ML_EFORMAT, v, "\"%s\" must be a string, not %s", key,
                          ml_json_what(v));
    out->ptr = ml_arena_str(&l->t->arena, v->text.ptr, v->text.len);
    out->len = v->text.len;
    return ML_OK;
}

ml_status ml_tok_need_str(ml_tok_loader *l, const ml_json *obj, const char *key,
                          ml_str *out) {
    ml_status st = ml_tok_get_str(l, obj, key, out);

    if (st == ML_OK && !out->len)
        return ml_tok_bad(l, ML_EFORMAT, obj, "\"%s\" must be a non-empty string", key);
    return st;
}

ml_status ml_tok_check_keys(ml_tok_loader *l, const ml_json *root, const char *known) {
    for (const ml_json *c = root->child; c; c = c->next) {
        const char *p = known;
        bool found = false;
        while (p && !found) {
            const char *bar = strchr(p, '|');
            size_t n = bar ? (size_t)(bar - p) : strlen(p);
            found = n == c->key.len && memcmp(p, c->key.ptr, n) == 0;
            p = bar ? bar + 1 : NULL;
        }
        if (!found)
            return ml_tok_bad(l, ML_EUNSUP, c,
                              "tokenizer: unknown option \"%.*s\"; supported are %s",
                              (int)c->key.len, c->key.ptr, known);
    }
    return ML_OK;
}
