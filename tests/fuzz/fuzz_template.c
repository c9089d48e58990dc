/* Any bytes: a template, a NUL, and JSON variables.  Compiled and rendered without a fault or
 * refused with a sentence, within the limits; the same again gives the same. */
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "text/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tm noon = { .tm_year = 125, .tm_mon = 2, .tm_mday = 7, .tm_hour = 12 };

static int64_t vars_from(ml_jinja_var **out, ml_arena *a, ml_str json) {
    const ml_json *v;
    int64_t n = 0;

    if (ml_json_parse(&v, a, json, "fuzz", NULL) || v->type != ML_JSON_OBJECT)
        return 0;
    *out = ML_NEW(a, ml_jinja_var, v->n);
    for (const ml_json *c = v->child; c; c = c->next)
        (*out)[n++] = (ml_jinja_var){ c->key, c };
    return n;
}

static void check_spans(const ml_jinja_text *t) {
    for (int64_t i = 0; i < t->n_span; i++)
        ML_BUG_IF(t->span[i].begin > t->span[i].end ||
                  t->span[i].end - t->span[i].begin >
                      t->span[i].end_byte - t->span[i].begin_byte);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    ml_jinja_opts o = { .now = &noon, .max_steps = 200000, .max_bytes = 1 << 24 };
    ml_jinja_var *var = NULL;
    ml_jinja *t;
    ml_arena a;
    ml_jinja_text first, second;
    ml_err err = { 0 };

    if (ml_jinja_compile(&t, (ml_str){ (const char *)data, n }, NULL, &err)) {
        ML_BUG_IF(!err.msg[0]);
        return 0;
    }
    ml_arena_init(&a, "fuzz");
    if (nul)
        o.n_var = vars_from(&var, &a, (ml_str){ (const char *)nul + 1, size - n - 1 });
    o.var = var;
    if (ml_jinja_render(&first, &a, t, &o, NULL, &err)) {
        ML_BUG_IF(!err.msg[0]);
    } else {
        check_spans(&first);
        ML_BUG_IF(ml_jinja_render(&second, &a, t, &o, NULL, &err));
        ML_BUG_IF(!ml_str_eq(first.text, second.text));
    }
    ml_arena_release(&a);
    ml_jinja_free(t);
    return 0;
}
