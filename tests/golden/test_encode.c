/* Tokens and text against the Python package: our small tokenizers, which between them have
 * every option (tests/golden/text, made by tools/gen_tokenizers.py), and those of published
 * models in $MILES_FIXTURES. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "text/tokenizer/detok.h"

#define OURS "tests/golden/text"

/* --- one text --------------------------------------------------------------- */

static bool same_ids(const ml_tokens *got, const ml_json *want) {
    const ml_json *c = want->child;

    if (got->n != want->n)
        return false;
    for (int64_t i = 0; i < got->n; i++, c = c->next) {
        int64_t id;
        if (!ml_json_i64(c, &id) || id != got->id[i])
            return false;
    }
    return true;
}

static bool same_spans(const ml_tokens *got, const ml_json *want) {
    const ml_json *c = want->child;

    if (2 * got->n != want->n)
        return false;
    for (int64_t i = 0; i < got->n; i++, c = c->next->next) {
        int64_t begin, end;
        if (!ml_json_i64(c, &begin) || !ml_json_i64(c->next, &end) ||
            begin != got->span[i].begin || end != got->span[i].end)
            return false;
    }
    return true;
}

static bool is_text(const ml_text *got, ml_str want) {
    return ml_str_eq((ml_str){ got->ptr, got->len }, want);
}

static void check_encoding(ml_encoder *e, const char *name, ml_str text, const ml_json *ids,
                           const ml_json *spans, bool add_special, ml_tokens *out) {
    ml_err err = { 0 };
    ml_encode_opts opts = { .add_special = add_special, .spans = spans != NULL };

    if (ml_encode(e, out, text, opts, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
    else if (!same_ids(out, ids))
        ml_test_fail(__FILE__, __LINE__, "%s: other ids for \"%.*s\"", name, (int)text.len,
                     text.ptr);
    else if (spans && !same_spans(out, spans))
        ml_test_fail(__FILE__, __LINE__, "%s: other spans for \"%.*s\"", name,
                     (int)text.len, text.ptr);
}

/* Token by token: the same text, and whole characters at every step. */
static void check_streaming(const ml_tokenizer *t, const char *name, const ml_tokens *ids,
                            bool skip_special, ml_str want) {
    ml_detok *d = ml_detok_new(t, skip_special);
    ml_text all = { 0 }, step = { 0 };

    for (int64_t i = 0; i <= ids->n; i++) {
        step.len = 0;
        if (i < ids->n)
            ml_detok_push(d, ids->id[i], &step);
        else
            ml_detok_finish(d, &step);
        for (size_t k = 0; k < step.len;) {
            const unsigned char *p = (unsigned char *)step.ptr + k;
            size_t n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
            if ((*p & 0xc0) == 0x80 || k + n > step.len)
                ml_test_fail(__FILE__, __LINE__, "%s: half a character", name);
            k += n;
        }
        ml_text_add(&all, step.ptr, step.len);
    }
    if (!is_text(&all, want))
        ml_test_fail(__FILE__, __LINE__, "%s: streamed \"%.*s\", expected \"%.*s\"", name,
                     (int)all.len, all.ptr, (int)want.len, want.ptr);
    ml_text_release(&all);
    ml_text_release(&step);
    ml_detok_free(d);
}

static void check_decoding(const ml_tokenizer *t, const char *name, const ml_tokens *ids,
                           bool skip_special, ml_str want) {
    ml_text text = { 0 };

    ml_decode(t, &text, ids->id, ids->n, skip_special);
    if (!is_text(&text, want))
        ml_test_fail(__FILE__, __LINE__, "%s: decoded \"%.*s\", expected \"%.*s\"", name,
                     (int)text.len, text.ptr, (int)want.len, want.ptr);
    ml_text_release(&text);
    check_streaming(t, name, ids, skip_special, want);
}

static void check_row(const ml_tokenizer *t, ml_encoder *e, const char *name,
                      const ml_json *row) {
    const ml_json *ids = ml_json_get(row, "ids"),
                  *special = ml_json_get(row, "ids_special");
    const ml_json *skip = ml_json_get(row, "decoded_skip");
    ml_str text = ml_json_get(row, "text")->text;
    ml_tokens out = { 0 };

    if (special && special->type == ML_JSON_NULL)
        special = NULL;
    check_encoding(e, name, text, special ? special : ids, NULL, true, &out);
    check_encoding(e, name, text, ids, ml_json_get(row, "spans"), false, &out);
    check_encoding(e, name, text, ids, NULL, false, &out); /* now from the cache */
    check_decoding(t, name, &out, false, ml_json_get(row, "decoded")->text);
    if (skip)
        check_decoding(t, name, &out, true, skip->text);
    ml_tokens_release(&out);
}

/* --- our tokenizers --------------------------------------------------------- */

/* A tokenizer.json made of a case's parts and its model. */
static ml_tokenizer *assemble(ml_str models, const ml_json *model, ml_str line,
                              const ml_json *parts) {
    ml_text json = { 0 };
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };

    ml_text_add(&json, "{\"version\":\"1.0\",", 17);
    ml_text_add(&json, line.ptr + parts->begin + 1, parts->end - parts->begin - 2);
    ml_text_add(&json, ",\"model\":", 9);
    ml_text_add(&json, models.ptr + model->begin, model->end - model->begin);
    ml_text_add(&json, "}", 1);
    if (ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "case", &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_text_release(&json);
    return t;
}

static void check_case(ml_str models, const ml_json *all, ml_str line, const ml_json *row) {
    char name[64], model[64];
    ml_str n = ml_json_get(row, "name")->text, m = ml_json_get(row, "model")->text;
    ml_tokenizer *t;
    ml_encoder *e;

    snprintf(name, sizeof name, "%.*s", (int)n.len, n.ptr);
    snprintf(model, sizeof model, "%.*s", (int)m.len, m.ptr);
    t = assemble(models, ml_json_get(all, model), line, ml_json_get(row, "parts"));
    if (!t)
        return;
    e = ml_encoder_new(t);
    for (const ml_json *c = ml_json_get(row, "texts")->child; c; c = c->next)
        check_row(t, e, name, c);
    ml_encoder_free(e);
    ml_tokenizer_close(t);
}

static void small_tokenizers_agree(void) {
    ml_file models, cases;
    ml_arena a;
    const ml_json *all, *row;
    ml_err err = { 0 };
    int n = 0;

    ml_arena_init(&a, "test");
    if (ml_file_map(&models, OURS "/models.json", &err) ||
        ml_file_map(&cases, OURS "/cases.jsonl", &err) ||
        ml_json_parse(&all, &a, models.bytes, "models.json", &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (ml_str left = cases.bytes; left.len; n++) {
        const char *end = memchr(left.ptr, '\n', left.len);
        ml_str line = { left.ptr, end ? (size_t)(end - left.ptr) : left.len };
        if (ml_json_parse(&row, &a, line, "cases.jsonl", &err))
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        else
            check_case(models.bytes, all, line, row);
        left.ptr += line.len + (end != NULL);
        left.len -= line.len + (end != NULL);
    }
    CHECK(n > 50);
    ml_arena_release(&a);
    ml_file_unmap(&cases);
    ml_file_unmap(&models);
}

/* --- the fixtures ----------------------------------------------------------- */

/* Unpacks the files of a fixture into the test's directory. */
static bool unpack(const char *name) {
    char command[8192];

    snprintf(command, sizeof command,
             "from=%s/tokenizers/%s to=%s; "
             "gzip -dcf $from/tokenizer.json.gz >$to/tokenizer.json && "
             "gzip -dcf $from/encode.jsonl.gz >$to/encode.jsonl && "
             "cp $from/tokenizer_config.json $to/",
             ml_test_fixtures(), name, ml_test_dir());
    return system(command) == 0;
}

/* Every row of dir/encode.jsonl, by the tokenizer in dir. */
static void check_folder(const char *dir, const char *name, int at_least) {
    ml_tokenizer *t = NULL;
    ml_encoder *e;
    ml_file rows;
    ml_arena a;
    ml_err err = { 0 };
    char path[1024];
    int n = 0;

    snprintf(path, sizeof path, "%s/encode.jsonl", dir);
    if (ml_tokenizer_open(&t, dir, &err) || ml_file_map(&rows, path, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
        return;
    }
    ml_arena_init(&a, "test");
    e = ml_encoder_new(t);
    for (ml_str left = rows.bytes; left.len; n++) {
        const char *end = memchr(left.ptr, '\n', left.len);
        ml_str line = { left.ptr, end ? (size_t)(end - left.ptr) : left.len };
        const ml_json *row;
        if (ml_json_parse(&row, &a, line, name, &err))
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        else
            check_row(t, e, name, row);
        left.ptr += line.len + (end != NULL);
        left.len -= line.len + (end != NULL);
    }
    CHECK(n >= at_least);
    ml_encoder_free(e);
    ml_tokenizer_close(t);
    ml_arena_release(&a);
    ml_file_unmap(&rows);
}

static void tiktoken_agrees(void) {
    check_folder(OURS "/kimi", "kimi", 60);
}

static void check_fixture(const char *name) {
    if (!unpack(name))
        ml_test_fail(__FILE__, __LINE__, "%s cannot be unpacked", name);
    else
        check_folder(ml_test_dir(), name, 600);
}

static void qwen3_agrees(void) {
    check_fixture("qwen3");
}

static void llama3_agrees(void) {
    check_fixture("llama3");
}

static void deepseek_v3_agrees(void) {
    check_fixture("deepseek_v3");
}

static void gemma3_agrees(void) {
    check_fixture("gemma3");
}

static const ml_test tests[] = {
    { "small tokenizers encode and decode as tokenizers does", small_tokenizers_agree },
    { "a tiktoken file encodes and decodes as tiktoken does", tiktoken_agrees },
    { "Qwen3's tokenizer encodes and decodes as tokenizers does", qwen3_agrees,
      .fixtures = "tokenizers" },
    { "Llama 3's tokenizer encodes and decodes as tokenizers does", llama3_agrees,
      .fixtures = "tokenizers" },
    { "DeepSeek-V3's tokenizer encodes and decodes as tokenizers does", deepseek_v3_agrees,
      .fixtures = "tokenizers" },
    { "Gemma 3's tokenizer encodes and decodes as tokenizers does", gemma3_agrees, 240,
      .fixtures = "tokenizers" },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
