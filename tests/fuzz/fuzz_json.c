/* Any bytes: parsed without a fault or refused with a sentence; what parses, written again
 * with quoted strings and source numbers, parses to the same document. */
#include <stdint.h>
#include <stdlib.h>

#include "base/bug.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_value(ml_text *t, const ml_json *v) {
    static const char *const words[] = {
        [ML_JSON_NULL] = "null", [ML_JSON_FALSE] = "false", [ML_JSON_TRUE] = "true"
    };
    bool is_object = v->type == ML_JSON_OBJECT;

    if (v->type == ML_JSON_STRING) {
        ml_json_quote(t, v->text);
    } else if (v->type == ML_JSON_NUMBER) {
        ml_text_add(t, v->text.ptr, v->text.len);
    } else if (v->type < ML_JSON_NUMBER) {
        ml_text_printf(t, "%s", words[v->type]);
    } else {
        ml_text_add(t, is_object ? "{" : "[", 1);
        for (const ml_json *c = v->child; c; c = c->next) {
            if (is_object) {
                ml_json_quote(t, c->key);
                ml_text_add(t, ":", 1);
            }
            write_value(t, c);
            if (c->next)
                ml_text_add(t, ",", 1);
        }
        ml_text_add(t, is_object ? "}" : "]", 1);
    }
}

static bool same(const ml_json *a, const ml_json *b) {
    if (a->type != b->type || a->n != b->n || !ml_str_eq(a->key, b->key) ||
        !ml_str_eq(a->text, b->text))
        return false;
    a = a->child;
    b = b->child;
    for (; a && b; a = a->next, b = b->next)
        if (!same(a, b))
            return false;
    return !a && !b;
}

/* Spans lie inside their parent and in order; the count is the count. */
static void check_spans(const ml_json *v, size_t begin, size_t end) {
    int32_t n = 0;

    ML_BUG_IF(v->begin < begin || v->end > end || v->begin >= v->end);
    ML_BUG_IF(!v->line || !v->column);
    begin = v->begin;
    for (const ml_json *c = v->child; c; c = c->next) {
        check_spans(c, begin, v->end);
        begin = c->end;
        n++;
    }
    ML_BUG_IF(n != v->n);
}

static void check_numbers(const ml_json *v) {
    int64_t i;
    double d;

    if (ml_json_i64(v, &i))
        ML_BUG_IF(!ml_json_f64(v, &d) || (i > 0) != (d > 0) || (i < 0) != (d < 0));
    for (const ml_json *c = v->child; c; c = c->next)
        check_numbers(c);
}

static void round_trip(const ml_json *v, ml_arena *a) {
    ml_text text = { 0 };
    const ml_json *again;
    ml_err err;

    write_value(&text, v);
    ML_BUG_IF(ml_json_parse(&again, a, (ml_str){ text.ptr, text.len }, "again", &err));
    ML_BUG_IF(!same(v, again));
    ml_text_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_arena a;
    const ml_json *v;
    ml_err err = { 0 };

    ml_arena_init(&a, "fuzz");
    if (ml_json_parse(&v, &a, (ml_str){ (const char *)data, size }, "fuzz", &err)) {
        ML_BUG_IF(!err.msg[0]);
    } else {
        check_spans(v, 0, size);
        check_numbers(v);
        round_trip(v, &a);
    }
    ml_arena_release(&a);
    return 0;
}
