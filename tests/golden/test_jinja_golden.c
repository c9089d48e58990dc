/* Chat templates against what Jinja2 and transformers made of them.
 *
 * Our own cases are made by tools/gen_jinja_cases.py.  Templates of published models have
 * licences of their own: they are read from $MILES_FIXTURES. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/map.h"
#include "tests/support/test.h"
#include "text/chat/chat_template.h"

/* The clock of the vectors: Friday 2025-03-07 16:05:09. */
static const struct tm clock_of_vectors = { .tm_year = 125,
                                            .tm_mon = 2,
                                            .tm_mday = 7,
                                            .tm_hour = 16,
                                            .tm_min = 5,
                                            .tm_sec = 9,
                                            .tm_wday = 5,
                                            .tm_yday = 65 };

/* --- rows ------------------------------------------------------------------------------ */

/* A file of $MILES_FIXTURES, valid until the next call. */
static const char *fixture(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", ml_test_fixtures(), name);
    return path;
}

static void read_all(ml_text *out, const char *path) {
    char command[4200], block[65536];
    size_t n;
    FILE *f;

    snprintf(command, sizeof command, "gzip -dcf %s", path);
    f = popen(command, "r");
    while (f && (n = fread(block, 1, sizeof block, f)) > 0)
        ml_text_add(out, block, n);
    CHECK(f && pclose(f) == 0);
}

/* The next line of a jsonl text as a document in `a`; NULL at the end. */
static const ml_json *next_row(ml_arena *a, const ml_text *t, size_t *at) {
    const char *begin = t->ptr + *at, *end;
    const ml_json *row = NULL;
    ml_err err;

    if (*at >= t->len)
        return NULL;
    end = memchr(begin, '\n', t->len - *at);
    end = end ? end : t->ptr + t->len;
    *at = (size_t)(end - t->ptr) + 1;
    if (ml_json_parse(&row, a, (ml_str){ begin, (size_t)(end - begin) }, "row", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return row;
}

static ml_str text_of(const ml_json *row, const char *key) {
    const ml_json *v = ml_json_get(row, key);
    return v ? v->text : (ml_str){ "", 0 };
}

/* --- comparing ---------------------------------------------------------------------------- */

typedef struct outcome {
    bool failed;
    ml_text text; /* or "Class: message" */
    ml_jinja_text rendered;
    uint32_t line;
} outcome;

static void render(outcome *o, ml_arena *a, ml_str template, const ml_json *context) {
    ml_jinja_var *var = ML_NEW(a, ml_jinja_var, context->n);
    ml_jinja_opts opts = { .var = var, .now = &clock_of_vectors };
    ml_jinja_fault fault = { 0 };
    ml_jinja *t;
    ml_err err;

    for (const ml_json *c = context->child; c; c = c->next)
        var[opts.n_var++] = (ml_jinja_var){ c->key, c };
    o->failed = ml_jinja_compile(&t, template, &fault, &err) != ML_OK ||
                ml_jinja_render(&o->rendered, a, t, &opts, &fault, &err) != ML_OK;
    if (o->failed)
        ml_text_printf(&o->text, "%s: %s", fault.kind, fault.message.ptr);
    else
        ml_text_add(&o->text, o->rendered.text.ptr, o->rendered.text.len);
    o->line = fault.line;
    ml_jinja_fault_release(&fault);
    ml_jinja_free(t);
}

/* Jinja's own errors are compared in full, Python's by their class. */
static bool same_error(ml_str expected, ml_str got) {
    static const char *const in_full[] = { "TemplateError",          "UndefinedError",
                                           "SecurityError",          "TemplateSyntaxError",
                                           "TemplateAssertionError", "TemplateRuntimeError",
                                           "FilterArgumentError" };
    const char *colon = memchr(expected.ptr, ':', expected.len);
    size_t n = colon ? (size_t)(colon - expected.ptr) : expected.len;

    for (size_t i = 0; i < sizeof in_full / sizeof *in_full; i++)
        if (ml_str_eq((ml_str){ expected.ptr, n }, ml_str_of(in_full[i])))
            return ml_str_eq(expected, got);
    return got.len > n && memcmp(expected.ptr, got.ptr, n) == 0 && got.ptr[n] == ':';
}

static bool same_spans(const ml_json *expected, const ml_jinja_text *t) {
    int64_t i = 0, begin, end;

    if (!expected)
        return true;
    if (expected->n != t->n_span)
        return false;
    for (const ml_json *c = expected->child; c; c = c->next, i++)
        if (!ml_json_i64(c->child, &begin) || !ml_json_i64(c->child->next, &end) ||
            begin != t->span[i].begin || end != t->span[i].end)
            return false;
    return true;
}

/* expected_key: what a row calls the text */
static bool matches(const ml_json *row, const char *expected_key, const outcome *o) {
    const ml_json *error = ml_json_get(row, "error");
    ml_str got = { o->text.ptr ? o->text.ptr : "", o->text.len };
    int64_t line;

    if (error && ml_json_i64(ml_json_get(row, "line"), &line) && line != o->line)
        return false;
    if (error)
        return o->failed && same_error(error->text, got);
    return !o->failed && ml_str_eq(text_of(row, expected_key), got) &&
           same_spans(ml_json_get(row, "generation"), &o->rendered);
}

static void tell(ml_str name, const ml_json *row, const char *expected_key,
                 const outcome *o) {
    ml_str want = text_of(row, ml_json_get(row, "error") ? "error" : expected_key);
    printf("    %.*s\n      want %.*s\n      got  %s%.*s (line %u)\n", (int)name.len,
           name.ptr, (int)want.len, want.ptr, o->failed ? "error " : "", (int)o->text.len,
           o->text.ptr ? o->text.ptr : "", o->line);
}

/* --- the sets --------------------------------------------------------------------------------- */

/* Integers beyond 64 bits are not offered. */
static bool beyond_us(const outcome *o) {
    return o->failed && o->text.len > 14 && memcmp(o->text.ptr, "OverflowError:", 14) == 0;
}

static void our_cases(void) {
    ml_text rows = { 0 };
    size_t at = 0;
    int n = 0, bad = 0;
    ml_arena a;

    read_all(&rows, "tests/golden/text/jinja_cases.jsonl");
    ml_arena_init(&a, "cases");
    for (const ml_json *row; (row = next_row(&a, &rows, &at)) != NULL; n++) {
        outcome o = { 0 };
        render(&o, &a, text_of(row, "template"), ml_json_get(row, "context"));
        if (!matches(row, "output", &o) && !beyond_us(&o)) {
            bad++;
            tell(text_of(row, "template"), row, "output", &o);
        }
        ml_text_release(&o.text);
    }
    CHECK(n > 300 && bad == 0);
    ml_arena_release(&a);
    ml_text_release(&rows);
}

static void snippets(void) {
    int n[2] = { 0 }, bad[2] = { 0 };
    ml_text rows = { 0 };
    size_t at = 0;
    ml_arena a;

    read_all(&rows, "tests/golden/text/jinja_snippets.jsonl");
    ml_arena_init(&a, "snippets");
    for (const ml_json *row; (row = next_row(&a, &rows, &at)) != NULL;) {
        bool edge = ml_str_is(text_of(row, "tier"), "edge");
        outcome o = { 0 };
        render(&o, &a, text_of(row, "template"), ml_json_get(row, "context"));
        n[edge]++;
        if (!matches(row, "output", &o)) {
            bad[edge]++;
            tell(text_of(row, "template"), row, "output", &o);
        }
        ml_text_release(&o.text);
    }
    printf("    core: %d of %d differ; edge: %d of %d\n", bad[0], n[0], bad[1], n[1]);
    CHECK(n[0] > 400 && bad[0] == 0);
    CHECK(n[1] > 200 && bad[1] * 20 <= n[1]);
    ml_arena_release(&a);
    ml_text_release(&rows);
}

static void conversations(void) {
    ml_text templates = { 0 }, rows = { 0 };
    ml_str *source;
    size_t at = 0;
    int n = 0, bad = 0;
    ml_arena a;
    ml_map by_name;

    read_all(&templates, fixture("jinja/templates.jsonl.gz"));
    read_all(&rows, fixture("jinja/conversations.jsonl.gz"));
    ml_arena_init(&a, "conversations");
    ml_map_init(&by_name, &a, 200);
    source = ML_NEW(&a, ml_str, 1000);
    for (const ml_json *row; (row = next_row(&a, &templates, &at)) != NULL;) {
        source[by_name.n] = text_of(row, "template");
        CHECK(ml_map_add(&by_name, text_of(row, "name"), by_name.n) && by_name.n < 1000);
    }
    at = 0;
    for (const ml_json *row; (row = next_row(&a, &rows, &at)) != NULL; n++) {
        int64_t i = ml_map_get(&by_name, text_of(row, "template_name"), -1);
        outcome o = { 0 };
        CHECK(i >= 0);
        render(&o, &a, source[i], ml_json_get(row, "input"));
        if (!matches(row, "text", &o)) {
            bad++;
            printf("    conversation %.*s\n", (int)text_of(row, "conversation").len,
                   text_of(row, "conversation").ptr);
            tell(text_of(row, "template_name"), row, "text", &o);
        }
        ml_text_release(&o.text);
    }
    printf("    %d of %d conversations differ\n", bad, n);
    CHECK(n > 2000 && bad == 0);
    ml_arena_release(&a);
    ml_text_release(&templates);
    ml_text_release(&rows);
}

/* Whole checkpoints: templates and special tokens of tokenizer_config.json. */
static void chats(const char *model) {
    char path[4096];
    ml_chat_template *t = NULL;
    ml_text rows = { 0 };
    size_t at = 0;
    int n = 0;
    ml_arena a;
    ml_err err;

    snprintf(path, sizeof path, "%s/tokenizers/%s/chat.jsonl.gz", ml_test_fixtures(),
             model);
    read_all(&rows, path);
    *strrchr(path, '/') = 0;
    ml_arena_init(&a, "chats");
    if (ml_chat_template_open(&t, path, NULL, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (const ml_json *row; (row = next_row(&a, &rows, &at)) != NULL; n++) {
        const ml_json *in = ml_json_get(row, "input");
        const ml_json *prompt = ml_json_get(in, "add_generation_prompt");
        ml_chat chat = { .messages = ml_json_get(in, "messages"),
                         .tools = ml_json_get(in, "tools"),
                         .add_generation_prompt = prompt && prompt->type == ML_JSON_TRUE,
                         .kwargs = in };
        ml_jinja_fault fault = { 0 };
        outcome o = { 0 };
        o.failed = ml_chat_render(&o.rendered, &a, t, &chat, &fault, NULL) != ML_OK;
        if (o.failed)
            ml_text_printf(&o.text, "%s: %s", fault.kind, fault.message.ptr);
        else
            ml_text_add(&o.text, o.rendered.text.ptr, o.rendered.text.len);
        if (!matches(row, "text", &o)) {
            ml_test_fail(__FILE__, __LINE__, "%s, row %d", model, n + 1);
            tell(ml_str_of(model), row, "text", &o);
        }
        ml_text_release(&o.text);
        ml_jinja_fault_release(&fault);
    }
    CHECK(n > 0);
    ml_chat_template_close(t);
    ml_arena_release(&a);
    ml_text_release(&rows);
}

static void checkpoints(void) {
    chats("deepseek_v3");
    chats("gemma3");
    chats("llama3");
    chats("qwen3");
}

static const ml_test tests[] = {
    { "templates that use every feature render as Jinja2", our_cases },
    { "snippets of templates render as Jinja2", snippets },
    { "chats of published checkpoints render as transformers", checkpoints,
      .fixtures = "tokenizers" },
    { "conversations render as Jinja2 with published templates", conversations, 300,
      .fixtures = "jinja" },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
