/* Random JSON schemas: what a grammar lets through validates.
 *
 * A text is drawn token by token from the masks, without a model.  The keywords that the
 * generator uses are checked here; with $MILES_SCHEMA_OUT, schemas and texts are written to
 * that file, which tests/e2e/grammar_schemas.py validates with the package jsonschema. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/must.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/detok.h"

enum { MAX_TOKENS = 4000, ENOUGH = 150 };

static uint64_t state;

static uint32_t rnd(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* --- schemas ---------------------------------------------------------------- */

static void write_schema(ml_text *t, int depth);

static void write_number(ml_text *t) {
    int lo = (int)rnd(400) - 200, hi = lo + 1 + (int)rnd(3000);
    bool whole = rnd(2);

    ml_text_printf(t, "{\"type\":\"%s\"", whole ? "integer" : "number");
    if (rnd(2))
        ml_text_printf(t, ",\"%s\":%d%s", rnd(2) ? "minimum" : "exclusiveMinimum", lo,
                       !whole && rnd(2) ? ".25" : "");
    if (rnd(2))
        ml_text_printf(t, ",\"%s\":%d%s", rnd(2) ? "maximum" : "exclusiveMaximum", hi + 2,
                       !whole && rnd(2) ? ".5" : "");
    ml_text_printf(t, "}");
}

static void write_string(ml_text *t) {
    static const char *const patterns[] = { "^[a-z]{2,8}$", "^(x|yz)+[0-9]?$", "^ab",
                                            "^\\\\d{3}-\\\\d{4}$", "^[^a-y\\\"]{0,3}$" };
    static const char *const formats[] = { "date", "time",     "date-time", "uuid",
                                           "ipv4", "hostname", "email" };
    int min = (int)rnd(5);

    ml_text_printf(t, "{\"type\":\"string\"");
    switch (rnd(5)) {
    case 0: ml_text_printf(t, ",\"pattern\":\"%s\"", patterns[rnd(5)]); break;
    case 1: ml_text_printf(t, ",\"format\":\"%s\"", formats[rnd(7)]); break;
    case 2:
        ml_text_printf(t, ",\"minLength\":%d,\"maxLength\":%d", min, min + (int)rnd(90));
        break;
    case 3: ml_text_printf(t, ",\"minLength\":%d", min); break;
    default: break;
    }
    ml_text_printf(t, "}");
}

static void write_object(ml_text *t, int depth) {
    static const char *const names[] = {
        "a", "ab", "name", "na", "id", "tags", "é", "x y"
    };
    int n = (int)rnd(5), first = (int)rnd(8), n_required = 0;

    ml_text_printf(t, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < n; i++) {
        ml_text_printf(t, "%s\"%s\":", i ? "," : "", names[(first + i) % 8]);
        write_schema(t, depth + 1);
    }
    ml_text_printf(t, "},\"required\":[");
    for (int i = 0; i < n; i++)
        if (rnd(2))
            ml_text_printf(t, "%s\"%s\"", n_required++ ? "," : "", names[(first + i) % 8]);
    ml_text_printf(t, "]");
    if (rnd(3) == 0) {
        ml_text_printf(t, ",\"additionalProperties\":");
        write_schema(t, depth + 2);
    } else if (rnd(2)) {
        ml_text_printf(t, ",\"additionalProperties\":%s", rnd(2) ? "false" : "true");
    }
    ml_text_printf(t, "}");
}

static void write_array(ml_text *t, int depth) {
    int min = (int)rnd(3), n = (int)rnd(3);

    ml_text_printf(t, "{\"type\":\"array\",\"minItems\":%d", min);
    if (rnd(2))
        ml_text_printf(t, ",\"maxItems\":%d", min + (int)rnd(5));
    if (n && rnd(2)) {
        ml_text_printf(t, ",\"prefixItems\":[");
        for (int i = 0; i < n; i++) {
            ml_text_printf(t, "%s", i ? "," : "");
            write_schema(t, depth + 1);
        }
        ml_text_printf(t, "]");
    }
    ml_text_printf(t, ",\"items\":");
    write_schema(t, depth + 1);
    ml_text_printf(t, "}");
}

static void write_choice(ml_text *t, int depth) {
    ml_text_printf(t, "{\"anyOf\":[");
    write_schema(t, depth + 1);
    ml_text_printf(t, ",");
    write_schema(t, depth + 1);
    ml_text_printf(t, "]}");
}

static void write_schema(ml_text *t, int depth) {
    static const char *const simple[] = { "{\"type\":\"boolean\"}",
                                          "{\"type\":\"null\"}",
                                          "{\"type\":[\"integer\",\"null\"]}",
                                          "{\"enum\":[\"on\",\"off\",3,null,[1,\"x\"]]}",
                                          "{\"const\":{\"k\":1.5}}",
                                          "{\"$ref\":\"#/$defs/tree\"}" };
    uint32_t kind = rnd(depth > 3 ? 7 : 10);

    if (kind < 3)
        ml_text_printf(t, "%s", simple[rnd(6)]);
    else if (kind < 5)
        write_number(t);
    else if (kind < 7)
        write_string(t);
    else if (kind == 7)
        write_object(t, depth);
    else if (kind == 8)
        write_array(t, depth);
    else
        write_choice(t, depth);
}

/* A root that is an object, with definitions; one of them is recursive. */
static void write_root(ml_text *t) {
    ml_text_printf(t, "{\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":");
    write_number(t);
    ml_text_printf(t, ",\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"},"
                      "\"maxItems\":2}},\"required\":[\"v\"]}},\"type\":\"object\","
                      "\"properties\":{\"p\":");
    write_schema(t, 1);
    ml_text_printf(t, ",\"q\":");
    write_schema(t, 0);
    ml_text_printf(t, "},\"required\":[\"p\"]}");
}

/* --- validation ------------------------------------------------------------- */

static bool validates(const ml_json *v, const ml_json *s, const ml_json *root);

static bool same(const ml_json *a, const ml_json *b) {
    const ml_json *x = a->child, *y = b->child;

    if (a->type != b->type || a->n != b->n || !ml_str_eq(a->text, b->text))
        return false;
    for (; x && y; x = x->next, y = y->next)
        if (!ml_str_eq(x->key, y->key) || !same(x, y))
            return false;
    return true;
}

static bool is_type(const ml_json *v, ml_str type) {
    static const char *const names[] = { "null",   "boolean", "boolean", "number",
                                         "string", "array",   "object" };
    int64_t whole;
    return ml_str_is(type, names[v->type]) ||
           (ml_str_is(type, "integer") && ml_json_i64(v, &whole));
}

static bool type_fits(const ml_json *v, const ml_json *type) {
    if (!type || (type->type == ML_JSON_STRING && is_type(v, type->text)))
        return true;
    for (const ml_json *t = type->child; t; t = t->next)
        if (is_type(v, t->text))
            return true;
    return false;
}

static double bound(const ml_json *s, const char *key, double absent) {
    double x = absent;
    ml_json_f64(ml_json_get(s, key) ? ml_json_get(s, key) : s, &x);
    return ml_json_get(s, key) ? x : absent;
}

static bool number_fits(const ml_json *v, const ml_json *s) {
    double x = 0;
    ml_json_f64(v, &x);
    return x >= bound(s, "minimum", -HUGE_VAL) && x <= bound(s, "maximum", HUGE_VAL) &&
           x > bound(s, "exclusiveMinimum", -HUGE_VAL) &&
           x < bound(s, "exclusiveMaximum", HUGE_VAL);
}

static bool string_fits(const ml_json *v, const ml_json *s) {
    const char *p = v->text.ptr;
    int n = 0;

    for (; p < v->text.ptr + v->text.len; n++)
        ml_utf8_next(&p);
    return n >= bound(s, "minLength", 0) && n <= bound(s, "maxLength", HUGE_VAL);
}

static bool array_fits(const ml_json *v, const ml_json *s, const ml_json *root) {
    const ml_json *prefix = ml_json_get(s, "prefixItems");

    prefix = prefix ? prefix->child : NULL;
    if (v->n < bound(s, "minItems", 0) || v->n > bound(s, "maxItems", HUGE_VAL))
        return false;
    for (const ml_json *c = v->child; c; c = c->next) {
        if (!validates(c, prefix ? prefix : ml_json_get(s, "items"), root))
            return false;
        prefix = prefix ? prefix->next : NULL;
    }
    return true;
}

static const ml_json *member(const ml_json *v, ml_str key) {
    for (const ml_json *c = v ? v->child : NULL; c; c = c->next)
        if (ml_str_eq(c->key, key))
            return c;
    return NULL;
}

static bool object_fits(const ml_json *v, const ml_json *s, const ml_json *root) {
    const ml_json *all = ml_json_get(s, "properties"),
                  *required = ml_json_get(s, "required");

    for (const ml_json *c = required ? required->child : NULL; c; c = c->next)
        if (!member(v, c->text))
            return false;
    for (const ml_json *c = v->child; c; c = c->next) {
        const ml_json *p = member(all, c->key);
        if (!validates(c, p ? p : ml_json_get(s, "additionalProperties"), root))
            return false;
    }
    return true;
}

static bool validates(const ml_json *v, const ml_json *s, const ml_json *root) {
    const ml_json *values = s ? ml_json_get(s, "enum") : NULL,
                  *any = s ? ml_json_get(s, "anyOf") : NULL;
    bool found = false;

    if (!s || s->type != ML_JSON_OBJECT)
        return !s || s->type == ML_JSON_TRUE;
    if (ml_json_get(s, "$ref"))
        return validates(v, ml_json_get(ml_json_get(root, "$defs"), "tree"), root);
    if (ml_json_get(s, "const"))
        return same(v, ml_json_get(s, "const"));
    for (const ml_json *c = values ? values->child
                            : any  ? any->child
                                   : NULL;
         c; c = c->next)
        found = found || (values ? same(v, c) : validates(v, c, root));
    if (values || any)
        return found;
    if (!type_fits(v, ml_json_get(s, "type")))
        return false;
    return v->type == ML_JSON_NUMBER   ? number_fits(v, s)
           : v->type == ML_JSON_STRING ? string_fits(v, s)
           : v->type == ML_JSON_ARRAY  ? array_fits(v, s, root)
           : v->type == ML_JSON_OBJECT ? object_fits(v, s, root)
                                       : true;
}

/* --- drawing ---------------------------------------------------------------- */

static bool allowed(const uint32_t *mask, int32_t id) {
    return mask[id / 32] >> (id % 32) & 1;
}

/* Any allowed token; of a long text, one that closes something, if there is one. */
static int32_t draw(const uint32_t *mask, int32_t n_vocab, int32_t n, bool long_text) {
    static const char closers[] = "}]\"";
    int32_t skip = (int32_t)rnd((uint32_t)n);

    for (uint32_t i = rnd(3), k = 0; k < 3 && long_text; k++)
        if (allowed(mask, closers[(i + k) % 3]))
            return closers[(i + k) % 3];
    for (int32_t id = 0; id < n_vocab; id++)
        if (allowed(mask, id) && skip-- == 0)
            return id;
    return -1;
}

/* A text of the grammar; false: it has too many tokens. */
static bool draw_text(ml_text *out, ml_grammar *g, const ml_tokenizer *t, int32_t n_vocab) {
    uint32_t mask[32];
    static int32_t answer[MAX_TOKENS];
    ml_matcher *m = ml_matcher_new(g);
    ml_matched got = { 0 };
    int32_t n = 0;

    for (; n < MAX_TOKENS; n++) {
        MUST(ml_matcher_mask(m, answer, n, mask, &got, &err));
        if (got.complete)
            break;
        answer[n] = draw(mask, n_vocab, got.n, n > ENOUGH);
        ml_token_bytes(t, answer[n], out);
    }
    ml_matcher_free(m);
    return got.complete;
}

static void check_one(ml_grammar_cache *cache, const ml_tokenizer *t, int32_t n_vocab,
                      FILE *dump) {
    ml_text schema = { 0 }, text = { 0 };
    const ml_json *s, *v;
    ml_grammar *g;
    ml_arena a;

    ml_arena_init(&a, "test");
    write_root(&schema);
    MUST(ml_grammar_get(
        &g, cache,
        (ml_grammar_source){ ML_GRAMMAR_JSON_SCHEMA, { schema.ptr, schema.len } }, &err));
    if (!draw_text(&text, g, t, n_vocab))
        ml_test_fail(__FILE__, __LINE__, "a text of %s does not end: %.300s", schema.ptr,
                     text.ptr);
    MUST(ml_json_parse(&s, &a, (ml_str){ schema.ptr, schema.len }, "schema", &err));
    MUST(ml_json_parse(&v, &a, (ml_str){ text.ptr, text.len }, "text", &err));
    if (!validates(v, s, s))
        ml_test_fail(__FILE__, __LINE__, "%s does not validate by %s", text.ptr,
                     schema.ptr);
    if (dump)
        fprintf(dump, "[%s, %.*s]\n", schema.ptr, (int)text.len, text.ptr);
    ml_grammar_release(g);
    ml_arena_release(&a);
    ml_text_release(&schema);
    ml_text_release(&text);
}

static void texts_validate(void) {
    const char *path = getenv("MILES_SCHEMA_OUT");
    FILE *dump = path ? fopen(path, "w") : NULL;
    ml_tokenizer *t = ml_byte_tokenizer(ml_json_tokens, ml_n_json_tokens);
    int32_t n_vocab = 256 + ml_n_json_tokens + 1;
    ml_grammar_cache *cache =
        ml_grammar_cache_new(&(ml_grammar_opts){ .tokenizer = t, .n_vocab = n_vocab });

    state = 20;
    for (int i = 0; i < (path ? 1000 : ML_TEST_SANITIZED ? 20 : 150); i++)
        check_one(cache, t, n_vocab, dump);
    if (dump)
        fclose(dump);
    ml_grammar_cache_free(cache);
    ml_tokenizer_close(t);
}

static const ml_test tests[] = {
    { "texts of random JSON schemas validate", texts_validate, .limit_s = 600 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
