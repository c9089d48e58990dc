#include "tests/support/cases.h"

#include <stdio.h>

#include "io/jsonl.h"
#include "tests/support/test.h"

void ml_test_cases(const char *name, void (*check)(ml_case *c)) {
    char path[256];
    ml_jsonl f = { 0 };
    ml_err err = { 0 };

    snprintf(path, sizeof path, "tests/golden/rl/%s", name);
    if (ml_jsonl_open(&f, path, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(f.n > 0);
    for (int64_t i = 0; i < f.n; i++) {
        ml_case c = { .path = path, .line = ml_jsonl_line(&f, i) };
        const ml_json *root;
        ml_arena_init(&c.arena, "a case");
        if (ml_jsonl_parse(&root, &f, i, &c.arena, &err) == ML_OK) {
            c.kind = ml_json_get(root, "kind");
            c.args = ml_json_get(root, "args");
            c.out = ml_json_get(root, "out");
            check(&c);
        } else {
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        }
        ml_arena_release(&c.arena);
    }
    ml_jsonl_close(&f);
}

void ml_case_fail(const ml_case *c, const char *what) {
    ml_test_fail(__FILE__, __LINE__, "%s:%lld: %s", c->path, (long long)c->line, what);
}

static bool is_absent(const ml_json *v) {
    return !v || v->type == ML_JSON_NULL;
}

int64_t ml_case_i64(const ml_json *obj, const char *key, int64_t absent) {
    const ml_json *v = ml_json_get(obj, key);
    int64_t n = absent;
    if (!is_absent(v) && !ml_json_i64(v, &n))
        ml_test_fail(__FILE__, __LINE__, "\"%s\" is no whole number", key);
    return n;
}

double ml_case_f64(const ml_json *obj, const char *key, double absent) {
    const ml_json *v = ml_json_get(obj, key);
    double x = absent;
    if (!is_absent(v) && !ml_json_f64(v, &x))
        ml_test_fail(__FILE__, __LINE__, "\"%s\" is no number", key);
    return x;
}

bool ml_case_flag(const ml_json *obj, const char *key) {
    const ml_json *v = ml_json_get(obj, key);
    return v && v->type == ML_JSON_TRUE;
}

int64_t *ml_case_i64s(ml_case *c, const ml_json *list, int64_t *n) {
    int64_t *x = ML_NEW(&c->arena, int64_t, (list ? list->n : 0) + 1), i = 0;

    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        if (!ml_json_i64(v, &x[i++]))
            ml_case_fail(c, "a list has something that is no whole number");
    *n = i;
    return x;
}

double *ml_case_f64s(ml_case *c, const ml_json *list, int64_t *n) {
    double *x = ML_NEW(&c->arena, double, (list ? list->n : 0) + 1);
    int64_t i = 0;

    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        if (!ml_json_f64(v, &x[i++]))
            ml_case_fail(c, "a list has something that is no number");
    *n = i;
    return x;
}
