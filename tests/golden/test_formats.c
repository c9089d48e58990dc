/* Checkpoints in other containers than safetensors, against what their own libraries read.
 *
 * tests/golden/formats/gguf has tiny models written by llama.cpp's converter and ggml's
 * quantizers, with every tensor dequantized by gguf-py, token ids and logits; MILES_FIXTURES
 * has more of them.  tests/golden/formats/bin has files of torch.save. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/gguf.h"
#include "base/json.h"
#include "io/checkpoint.h"
#include "io/dcp.h"
#include "io/gguf_weights.h"
#include "io/quant.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_run.h"
#include "text/tokenizer/tokenizer.h"

#define ROOT "tests/golden/formats/"

static void run(const char *line) {
    char said[4096];

    if (ml_test_miles(said, sizeof said, line) != 0 || said[0])
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

static ml_st_file *open_file(const char *path) {
    ml_st_file *f = NULL;
    ml_err err = { 0 };

    if (ml_st_open(&f, path, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return f;
}

static void compare_logits(const ml_st_file *want, const ml_st_file *got, double bound) {
    int n = 0;

    for (int32_t i = 0; got && i < want->n; i++) {
        const ml_st_tensor *a = &want->tensor[i], *b = ml_st_find(got, a->name);
        const float *x = a->data, *y = b ? b->data : NULL;
        double most = 0, size = 0;

        if (strncmp(a->name.ptr, "logits.", 7) != 0)
            continue;
        n++;
        CHECK(b && b->bytes == a->bytes);
        for (size_t k = 0; b && k < a->bytes / sizeof *x; k++) {
            most = fmax(most, fabs((double)x[k] - (double)y[k]));
            size = fmax(size, fabs((double)x[k]));
        }
        if (!(most <= bound * size))
            ml_test_fail(__FILE__, __LINE__, "%s: off by %g of %g", a->name.ptr, most,
                         size);
    }
    CHECK(n > 0);
}

static void check_logits(const char *model, const char *golden, const ml_st_file *want) {
    const char *out = ml_test_path("scores.safetensors");
    char line[2048];
    ml_st_file *got;

    snprintf(line, sizeof line,
             "score --hf-checkpoint %s --input %s --output %s --logits --dtype f32", model,
             golden, out);
    run(line);
    got = open_file(out);
    compare_logits(want, got, 1e-5);
    ml_st_close(got);
}

/* --- GGUF ------------------------------------------------------------------------- */

static void check_tensors(const char *model, const ml_st_file *want) {
    ml_file file = { 0 };
    ml_gguf *g = NULL;
    ml_err err = { 0 };
    int n = 0;

    CHECK(ml_file_map(&file, model, &err) == ML_OK);
    if (ml_gguf_parse(&g, file.bytes, model, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (int32_t i = 0; i < want->n; i++) {
        const ml_st_tensor *a = &want->tensor[i];
        const ml_gguf_tensor *t;
        int64_t per = 1;
        size_t size = 0;
        float y[256];

        if (strncmp(a->name.ptr, "tensor.", 7) != 0)
            continue;
        n++;
        t = ml_gguf_find(g, a->name.ptr + 7);
        CHECK(t && ml_ggml_block(t->type, &per, &size));
        for (size_t k = 0; t && k < a->bytes / 4 / (size_t)per; k++) {
            ml_ggml_dequantize(
                t->type, (const unsigned char *)g->image.ptr + t->offset + k * size, y);
            if (memcmp(y, (const char *)a->data + k * (size_t)per * 4, (size_t)per * 4)) {
                ml_test_fail(__FILE__, __LINE__, "%s (%s): block %zu differs", a->name.ptr,
                             ml_ggml_name(t->type), k);
                break;
            }
        }
    }
    CHECK(n > 1);
    ml_gguf_free(g);
    ml_file_unmap(&file);
}

static void check_ids(ml_encoder *e, const ml_json *row) {
    const ml_json *text = ml_json_get(row, "text"), *ids = ml_json_get(row, "ids");
    ml_tokens got = { 0 };
    ml_err err = { 0 };
    int32_t n = 0;
    bool same = ml_encode(e, &got, text->text, (ml_encode_opts){ 0 }, &err) == ML_OK &&
                got.n == ids->n;

    for (const ml_json *c = ids->child; c && same; c = c->next, n++) {
        int64_t id = -1;
        same = ml_json_i64(c, &id) && got.id[n] == id;
    }
    if (!same)
        ml_test_fail(__FILE__, __LINE__, "\"%.*s\": other token ids from number %d on",
                     (int)text->text.len, text->text.ptr, (int)n);
    ml_tokens_release(&got);
}

static void check_tokenizer(const char *model, const char *golden) {
    ml_tokenizer *t = NULL;
    ml_encoder *e;
    ml_file file = { 0 };
    const ml_json *root, *list;
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    CHECK(ml_file_map(&file, golden, &err) == ML_OK);
    CHECK(ml_json_parse(&root, &a, file.bytes, golden, &err) == ML_OK);
    if (ml_tokenizer_open(&t, model, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    e = ml_encoder_new(t);
    list = ml_json_get(root, "encode");
    CHECK(list && list->n > 3);
    for (const ml_json *c = list->child; c; c = c->next)
        check_ids(e, c);
    ml_encoder_free(e);
    ml_tokenizer_close(t);
    ml_file_unmap(&file);
    ml_arena_release(&a);
}

/* The exported directory gives the logits of the file, with its tokenizer. */
static void check_export(const char *model, const char *golden, const char *json,
                         const ml_st_file *want) {
    const char *dir = ml_test_path("exported");
    char line[2048];

    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s --dtype f32",
             model, dir);
    run(line);
    check_logits(dir, golden, want);
    check_tokenizer(dir, json);
}

static void check_gguf(const char *folder, const char *name) {
    char model[1024], golden[1100], json[1100];
    ml_st_file *want;

    snprintf(model, sizeof model, "%s/%s.gguf", folder, name);
    snprintf(golden, sizeof golden, "%s.golden.safetensors", model);
    snprintf(json, sizeof json, "%s.golden.json", model);
    want = open_file(golden);
    if (!want)
        return;
    check_tensors(model, want);
    check_tokenizer(model, json);
    check_logits(model, golden, want);
    check_export(model, golden, json, want);
    ml_st_close(want);
}

static void gguf_gemma3(void) {
    check_gguf(ROOT "gguf", "gemma3-q4_0");
}

static void gguf_qwen3(void) {
    check_gguf(ROOT "gguf", "qwen3-q8_0");
}

static void gguf_llama_k(void) {
    check_gguf(ROOT "gguf", "llama_k-q4_K_M");
}

/* The same file with the other value of tokenizer.ggml.pre, of the same length. */
static void gguf_single_digits(void) {
    const char *path = ROOT "gguf/llama_k-q4_K_M.gguf", *copy = ml_test_path("digits.gguf");
    const char *digits = "{\"type\": \"Digits\", \"individual_digits\": true}";
    char inner[1024], *at;
    ml_file file = { 0 }, json = { 0 };
    ml_text bytes = { 0 };
    ml_err err = { 0 };

    CHECK(ml_file_map(&file, path, &err) == ML_OK);
    ml_text_add(&bytes, file.bytes.ptr, file.bytes.len);
    ml_file_unmap(&file);
    at = memmem(bytes.ptr, bytes.len, "llama-bpe", 9);
    CHECK(at != NULL);
    if (at)
        memcpy(at, "starcoder", 9);
    CHECK(ml_file_replace(copy, (ml_str){ bytes.ptr, bytes.len }, &err) == ML_OK);
    ml_text_release(&bytes);
    snprintf(inner, sizeof inner, "%s/tokenizer.json", copy);
    CHECK(ml_file_map(&json, inner, &err) == ML_OK);
    CHECK(memmem(json.bytes.ptr, json.bytes.len, digits, strlen(digits)));
    ml_file_unmap(&json);
    check_tokenizer(copy, ROOT "gguf/llama_k-q4_K_M.gguf.golden.json");
}

static void gguf_fixture(const char *name) {
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/formats/gguf", ml_test_fixtures());
    check_gguf(folder, name);
}

static void gguf_llama_f32(void) {
    gguf_fixture("llama-f32");
}

static void gguf_llama_q8(void) {
    gguf_fixture("llama-q8_0");
}

static void gguf_llama_q4(void) {
    gguf_fixture("llama-q4_0");
}

static void gguf_gemma3_bf16(void) {
    gguf_fixture("gemma3-bf16");
}

static void gguf_qwen3_f16(void) {
    gguf_fixture("qwen3-f16");
}

static void gguf_qwen3_q6(void) {
    gguf_fixture("qwen3_k-q6_K");
}

/* Every type, also those that no model here has. */
static void gguf_blocks(void) {
    static const ml_ggml_type types[] = { ML_GGML_Q4_0, ML_GGML_Q4_1, ML_GGML_Q5_0,
                                          ML_GGML_Q5_1, ML_GGML_Q8_0, ML_GGML_Q2_K,
                                          ML_GGML_Q3_K, ML_GGML_Q4_K, ML_GGML_Q5_K,
                                          ML_GGML_Q6_K };
    ml_st_file *f = open_file(ROOT "gguf/blocks.safetensors");

    for (size_t i = 0; f && i < sizeof types / sizeof *types; i++) {
        char q_name[32], y_name[32];
        const ml_st_tensor *q, *want;
        int64_t per = 0;
        size_t size = 0;

        snprintf(q_name, sizeof q_name, "q.%s", ml_ggml_name(types[i]));
        snprintf(y_name, sizeof y_name, "y.%s", ml_ggml_name(types[i]));
        q = ml_st_find(f, ml_str_of(q_name));
        want = ml_st_find(f, ml_str_of(y_name));
        CHECK(q && want && ml_ggml_block(types[i], &per, &size));
        CHECK((size_t)q->shape[1] == size && want->shape[1] == per);
        for (int64_t b = 0; b < q->shape[0]; b++) {
            float y[256];
            ml_ggml_dequantize(types[i], (const unsigned char *)q->data + (size_t)b * size,
                               y);
            if (memcmp(y, (const float *)want->data + b * per, (size_t)per * 4) != 0)
                ml_test_fail(__FILE__, __LINE__, "%s: block %d differs", y_name, (int)b);
        }
    }
    ml_st_close(f);
}

/* The chat template of the file's keys. */
static void gguf_template(void) {
    const char *rows = ml_test_path("chat.jsonl");
    char said[4096], line[1024];

    CHECK(ml_file_replace(
              rows,
              ml_str_of("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"),
              NULL) == ML_OK);
    snprintf(line, sizeof line,
             "chat-template --hf-checkpoint " ROOT "gguf/qwen3-q8_0.gguf < %s", rows);
    CHECK(ml_test_miles(said, sizeof said, line) == 0);
    CHECK_HAS(said, "<|user|>Hi");
}

static void same_bytes(const char *a, const char *b) {
    ml_file x = { 0 }, y = { 0 };
    ml_err err = { 0 };

    if (ml_file_map(&x, a, &err) != ML_OK || ml_file_map(&y, b, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    else if (!ml_str_eq(x.bytes, y.bytes))
        ml_test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
    ml_file_unmap(&x);
    ml_file_unmap(&y);
}

static void save_gguf(const char *from, const char *to, const char *dtype) {
    char line[2048];
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-gguf %s --dtype %s",
             from, to, dtype);
    run(line);
}

/* What is on the grid of Q8_0 stays there: the file is written again byte for byte. */
static void gguf_again(void) {
    save_gguf(ROOT "gguf/qwen3-q8_0.gguf", ml_test_path("again.gguf"), "q8_0");
    same_bytes(ml_test_path("again.gguf"), ROOT "gguf/qwen3-q8_0.gguf");
}

/* The same model in three files, which gguf-py wrote (tools/gen_gguf_split.py). */
#define SPLIT ROOT "gguf/split-00001-of-00003.gguf"

static void gguf_split(void) {
    const char *golden = ROOT "gguf/qwen3-q8_0.gguf.golden.safetensors";
    ml_st_file *want = open_file(golden);

    check_tokenizer(SPLIT, ROOT "gguf/qwen3-q8_0.gguf.golden.json");
    check_logits(SPLIT, golden, want);
    save_gguf(SPLIT, ml_test_path("merged.gguf"), "q8_0");
    same_bytes(ml_test_path("merged.gguf"), ROOT "gguf/qwen3-q8_0.gguf");
    ml_st_close(want);
}

static void refused(const char *model, const char *said) {
    char line[2048], out[4096];

    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s", model,
             ml_test_path("refused"));
    CHECK(ml_test_miles(out, sizeof out, line) != 0);
    CHECK_HAS(out, said);
}

static void gguf_split_wrong(void) {
    const char *alone = ml_test_path("alone-00001-of-00003.gguf");
    const char *renamed = ml_test_path("renamed.gguf");
    ml_file first = { 0 };

    CHECK(ml_file_map(&first, SPLIT, NULL) == ML_OK);
    CHECK(ml_file_replace(alone, first.bytes, NULL) == ML_OK);
    CHECK(ml_file_replace(renamed, first.bytes, NULL) == ML_OK);
    ml_file_unmap(&first);
    refused(alone, "alone-00002-of-00003.gguf: cannot open");
    refused(renamed, "names must end in -00001-of-00003.gguf");
    refused(ROOT "gguf/split-00002-of-00003.gguf",
            "give the one that ends in -00001-of-00003.gguf");
}

/* The text model of a wrapper, whose sizes are in text_config. */
static void gguf_of_release(void) {
    const char *out = ml_test_path("vl.gguf");
    ml_st_file *want = open_file("tests/golden/wrappers/qwen3_vl/golden.safetensors");
    char line[2048], said[4096];

    snprintf(line, sizeof line,
             "convert --hf-checkpoint tests/golden/wrappers/qwen3_vl --save-gguf %s "
             "--dtype f32",
             out);
    CHECK(ml_test_miles(said, sizeof said, line) == 0);
    CHECK_HAS(said, "its text model is used");
    check_logits(out, "tests/golden/wrappers/qwen3_vl/golden.safetensors", want);
    ml_st_close(want);
}

/* Llama 3's frequencies are a tensor, which a second conversion keeps. */
static void gguf_frequencies(void) {
    const char *first = ml_test_path("first.gguf"), *second = ml_test_path("second.gguf");
    const char *golden = "tests/golden/data/llama/golden.safetensors";
    ml_st_file *want = open_file(golden);

    save_gguf("tests/golden/data/llama", first, "f32");
    check_logits(first, golden, want);
    save_gguf(first, second, "f32");
    same_bytes(first, second);
    ml_st_close(want);
}

static void refused_gguf(const char *model, const char *said) {
    char line[2048], out[4096];

    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-gguf %s --dtype f32",
             model, ml_test_path("refused.gguf"));
    CHECK(ml_test_miles(out, sizeof out, line) != 0);
    CHECK_HAS(out, said);
}

/* llama.cpp would compute something else from such a file. */
static void gguf_cannot_say(void) {
    refused_gguf("tests/golden/data/qwen3_moe", "some layers have no experts");
    refused_gguf("tests/golden/data/qwen2", "layers have sliding_window attention");
    refused_gguf("tests/golden/data/mistral", "layers have sliding_window attention");
    refused_gguf("tests/golden/data/gemma2", "query_pre_attn_scalar is not the size");
    refused_gguf("tests/golden/data/gemma3_text", "the layers with full attention");
}

static void gguf_q8_of_f32(void) {
    char f32[1024], q8[1024];
    snprintf(f32, sizeof f32, "%s/formats/gguf/llama-f32.gguf", ml_test_fixtures());
    snprintf(q8, sizeof q8, "%s/formats/gguf/llama-q8_0.gguf", ml_test_fixtures());
    save_gguf(f32, ml_test_path("q8.gguf"), "q8_0");
    same_bytes(ml_test_path("q8.gguf"), q8);
    save_gguf(f32, ml_test_path("f32.gguf"), "auto");
    same_bytes(ml_test_path("f32.gguf"), f32);
}

/* A directory of a Hugging Face checkpoint, written as GGUF, has its ids and logits. */
static void gguf_of_directory(void) {
    static const char *const models[] = { "gemma3-q4_0", "qwen3-q8_0", "llama_k-q4_K_M" };

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char model[256], golden[300], json[300], line[1024], out[64];
        ml_st_file *want;
        snprintf(model, sizeof model, ROOT "gguf/%s.gguf", models[i]);
        snprintf(golden, sizeof golden, "%s.golden.safetensors", model);
        snprintf(json, sizeof json, "%s.golden.json", model);
        snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s --dtype f32",
                 model, ml_test_path(models[i]));
        run(line);
        snprintf(out, sizeof out, "%s.gguf", models[i]);
        save_gguf(ml_test_path(models[i]), ml_test_path(out), "f32");
        want = open_file(golden);
        check_logits(ml_test_path(out), golden, want);
        check_tokenizer(ml_test_path(out), json);
        ml_st_close(want);
    }
}

/* --- torch.save ------------------------------------------------------------------- */

/* Floats with more than one dtype, as f32; others must be stored as they are. */
static void compare_tensor(const ml_st_tensor *want, const ml_st_tensor *got) {
    size_t size = want->dtype == ML_ST_F32 ? 4 : 2;

    CHECK(got->dtype == want->dtype && got->n_dim == want->n_dim);
    CHECK(!memcmp(got->shape, want->shape, sizeof *got->shape * (size_t)got->n_dim));
    if (!got->quant) {
        CHECK(got->bytes == want->bytes && !memcmp(got->data, want->data, want->bytes));
        return;
    }
    for (int64_t i = 0; i < (int64_t)(want->bytes / size); i++) {
        float v, w;
        uint16_t h;
        ml_quant_read(got->quant, i, 1, 1, &v);
        memcpy(&h, (const char *)want->data + (size_t)i * size, 2);
        if (want->dtype == ML_ST_F32)
            memcpy(&w, (const char *)want->data + i * 4, 4);
        else
            w = want->dtype == ML_ST_BF16 ? ml_bf16_to_f32(h) : ml_f16_to_f32(h);
        CHECK(memcmp(&v, &w, sizeof v) == 0);
    }
}

static void link_file(const char *from, const char *to) {
    char path[1024], here[512];
    CHECK(getcwd(here, sizeof here) != NULL);
    snprintf(path, sizeof path, "%s/" ROOT "bin/%s", here, from);
    unlink(ml_test_path(to));
    CHECK(symlink(path, ml_test_path(to)) == 0);
}

static void check_bin(int32_t n_file) {
    ml_st_file *want = open_file(ROOT "bin/golden.safetensors");
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    if (ml_checkpoint_open(&c, ml_test_dir(), &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(c->n_file == n_file && c->n_tensor > 5);
    for (int64_t i = 0; i < c->n_tensor; i++) {
        const ml_st_tensor *t = ml_st_find(want, c->tensor[i].t.name);
        CHECK(t != NULL);
        if (t)
            compare_tensor(t, &c->tensor[i].t);
    }
    ml_checkpoint_close(c);
    ml_st_close(want);
}

static void single_bin(void) {
    link_file("pytorch_model.bin", "pytorch_model.bin");
    check_bin(1);
    link_file("legacy.bin", "pytorch_model.bin");
    check_bin(1);
}

static void sharded_bin(void) {
    link_file("sharded-00001-of-00002.bin", "sharded-00001-of-00002.bin");
    link_file("sharded-00002-of-00002.bin", "sharded-00002-of-00002.bin");
    link_file("sharded.bin.index.json", "pytorch_model.bin.index.json");
    check_bin(2);
}

/* --- torch distributed checkpoints ------------------------------------------------ */

/* Every tensor under its flattened name, read along the last dimension. */
static void compare_dcp(const ml_dcp_tensor *t, const ml_st_tensor *want) {
    int64_t row = t->n_dim ? t->shape[t->n_dim - 1] : 1;
    size_t size = 0;
    char *got = malloc(want->bytes + 1);

    ml_st_size(t->dtype, NULL, 0, &size);
    CHECK(t->dtype == want->dtype && t->n_dim == want->n_dim);
    CHECK(!memcmp(t->shape, want->shape, sizeof *t->shape * (size_t)t->n_dim));
    for (int64_t r = 0; row && r < (int64_t)(want->bytes / size) / row; r++) {
        int64_t index[ML_ST_DIMS] = { 0 }, rest = r;
        for (int32_t i = t->n_dim - 2; i >= 0; i--) {
            index[i] = rest % t->shape[i];
            rest /= t->shape[i];
        }
        ml_dcp_read(t, index, row, got + (size_t)(r * row) * size);
    }
    if (memcmp(got, want->data, want->bytes) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s differs", t->name.ptr);
    free(got);
}

static void check_dcp(const char *name) {
    char path[256];
    ml_dcp *d = NULL;
    ml_st_file *want;
    ml_err err = { 0 };
    int n = 0;

    snprintf(path, sizeof path, ROOT "dcp/%s.golden.safetensors", name);
    want = open_file(path);
    snprintf(path, sizeof path, ROOT "dcp/%s", name);
    if (!want || ml_dcp_open(&d, path, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (int32_t i = 0; i < d->n; i++) {
        const ml_st_tensor *t = ml_st_find(want, d->tensor[i].name);
        n += t != NULL;
        if (t)
            compare_dcp(&d->tensor[i], t);
    }
    CHECK(n == want->n);
    ml_dcp_close(d);
    ml_st_close(want);
}

static void dcp_tensors(void) {
    check_dcp("single");
    check_dcp("sharded2");
}

/* As a checkpoint it has the weights alone, under the names of the release. */
static void dcp_weights(void) {
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    CHECK(ml_checkpoint_open(&c, ROOT "dcp/single", &err) == ML_OK);
    CHECK(c->n_tensor == 6);
    CHECK(ml_checkpoint_find(c, ml_str_of("model.embed_tokens.weight"), NULL));
    CHECK(ml_checkpoint_find(c, ml_str_of("lm_head.weight"), NULL));
    ml_checkpoint_close(c);
}

static float rounded(float x, ml_st_dtype to) {
    return to == ML_ST_BF16 ? ml_bf16_to_f32(ml_f32_to_bf16(x)) : x;
}

/* Megatron's layout: every weight of the release, rounded to bf16 or in f32. */
static void compare_release(const ml_checkpoint *got, const ml_checkpoint *want) {
    for (int64_t i = 0; i < want->n_tensor; i++) {
        const ml_st_tensor *a = &want->tensor[i].t;
        const ml_st_tensor *b = ml_checkpoint_find(got, a->name, NULL);
        int64_t cols = a->shape[a->n_dim - 1], rows = a->n_dim == 2 ? a->shape[0] : 1;
        const float *x = a->data;
        float y[512];

        CHECK(a->dtype == ML_ST_F32 && cols <= 512);
        if (!b || b->n_dim != a->n_dim || b->shape[0] < a->shape[0]) {
            ml_test_fail(__FILE__, __LINE__, "%s is missing", a->name.ptr);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            ml_quant_read(b->quant, r * cols, 1, cols, y);
            for (int64_t k = 0; k < cols; k++)
                if (y[k] != rounded(x[r * cols + k], b->dtype)) {
                    ml_test_fail(__FILE__, __LINE__, "%s: row %d differs", a->name.ptr,
                                 (int)r);
                    return;
                }
        }
    }
}

static void check_megatron(const char *name) {
    char path[1024];
    ml_checkpoint *got = NULL, *want = NULL;
    ml_err err = { 0 };

    snprintf(path, sizeof path, "%s/models/%s", ml_test_fixtures(), name);
    CHECK(ml_checkpoint_open(&want, path, &err) == ML_OK);
    snprintf(path, sizeof path, "%s/formats/dcp/megatron_%s", ml_test_fixtures(), name);
    if (ml_checkpoint_open(&got, path, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    else
        compare_release(got, want);
    CHECK(got && got->n_tensor == want->n_tensor);
    ml_checkpoint_close(got);
    ml_checkpoint_close(want);
}

static void dcp_megatron(void) {
    check_megatron("qwen3");
    check_megatron("qwen3_moe");
}

/* Multi-head latent attention, of tools/gen_dcp_mla.py. */
#define MLA_FROM "tests/golden/data/deepseek_v3"
#define MLA ROOT "dcp/megatron_deepseek_v3"

static void compare_mla(const char *dcp, const char *release) {
    ml_checkpoint *got = NULL, *want = NULL;

    MUST(ml_checkpoint_open(&want, release, &err));
    MUST(ml_checkpoint_open(&got, dcp, &err));
    compare_release(got, want);
    ml_checkpoint_close(got);
    ml_checkpoint_close(want);
}

static void dcp_mla(void) {
    compare_mla(MLA, MLA_FROM);
}

static void dcp_indexer(void) {
    compare_mla(MLA "2", MLA_FROM "2");
}

/* A checkpoint with the text of the toy model; `spoiled`: other weights. */
static void make_model(const char *name, bool spoiled) {
    char line[2048], path[1024];
    ml_file f = { 0 };
    char *bytes;
    uint64_t header;

    snprintf(line, sizeof line,
             "convert --hf-checkpoint " MLA_FROM " --save-hf %s/%s --dtype bf16",
             ml_test_dir(), name);
    run(line);
    snprintf(line, sizeof line, "cp %s/model/tokenizer* %s/model/chat_template* %s/%s/",
             ml_test_dir(), ml_test_dir(), ml_test_dir(), name);
    CHECK(system(line) == 0);
    if (!spoiled)
        return;
    snprintf(path, sizeof path, "%s/%s/model.safetensors", ml_test_dir(), name);
    MUST(ml_file_map(&f, path, &err));
    bytes = malloc(f.bytes.len);
    memcpy(bytes, f.bytes.ptr, f.bytes.len);
    memcpy(&header, bytes, sizeof header);
    for (size_t i = 8 + header; i < f.bytes.len; i += 2)
        bytes[i] ^= 1;
    MUST(ml_file_replace(path, (ml_str){ bytes, f.bytes.len }, &err));
    ml_file_unmap(&f);
    free(bytes);
}

/* The run with --load and --ref-load of the folder, and a checkpoint with other weights,
 * is the run of a checkpoint with the folder's weights. */
static void dcp_run(void) {
    const char *a = ml_test_path("released"), *b = ml_test_path("loaded");
    const char *kl = "--use-kl-loss --kl-loss-coef 0.1 --kl-loss-type low_var_kl";
    char more[2000], out[8000];

    ml_toy_run_inputs();
    make_model("right", false);
    make_model("spoiled", true);
    snprintf(more, sizeof more, "%s --hf-checkpoint %s --ref-load %s", kl,
             ml_test_path("right"), ml_test_path("right"));
    if (ml_toy_run("train", a, 2, more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    snprintf(more, sizeof more, "%s --hf-checkpoint %s --ref-load " MLA " --load " MLA, kl,
             ml_test_path("spoiled"));
    if (ml_toy_run("train", b, 2, more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    ml_toy_run_same(a, b, 2);
}

/* --- quantized exports ------------------------------------------------------------ */

static void convert(const char *from, const char *to, const char *dtype) {
    char line[2048];
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s --dtype %s", from,
             to, dtype);
    run(line);
}

static void same_files(const char *a, const char *b) {
    static const char *const names[] = { "model.safetensors", "config.json" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        ml_file x = { 0 }, y = { 0 };
        snprintf(path, sizeof path, "%s/%s", a, names[i]);
        CHECK(ml_file_map(&x, path, NULL) == ML_OK);
        snprintf(path, sizeof path, "%s/%s", b, names[i]);
        CHECK(ml_file_map(&y, path, NULL) == ML_OK);
        if (!ml_str_eq(x.bytes, y.bytes))
            ml_test_fail(__FILE__, __LINE__, "%s and %s: %s differs", a, b, names[i]);
        ml_file_unmap(&x);
        ml_file_unmap(&y);
    }
}

/* A dequantized model that is rounded to its own format again is the same model. */
static void rounded_again(void) {
    static const struct {
        const char *model, *dtype;
    } rows[] = { { "fp8_qwen3", "fp8" },         { "fp8_ue8m0_deepseek_v3", "fp8-ue8m0" },
                 { "mxfp8_qwen3_moe", "mxfp8" }, { "int4_kimi_deepseek_v3", "int4" },
                 { "mxfp4_gpt_oss", "mxfp4" },   { "nvfp4_glm4_moe", "nvfp4" } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[256], golden[300];
        const char *out = ml_test_path(rows[i].dtype);
        ml_st_file *want;
        snprintf(dir, sizeof dir, "tests/golden/quant/%s", rows[i].model);
        snprintf(golden, sizeof golden, "%s/golden.safetensors", dir);
        want = open_file(golden);
        convert(dir, out, rows[i].dtype);
        if (want)
            check_logits(out, golden, want);
        ml_st_close(want);
    }
}

/* Rounding what is already on the grid changes nothing. */
static void rounded_twice(void) {
    static const char *const dtypes[] = { "fp8", "fp8-ue8m0", "fp8-row", "fp8-tensor",
                                          "int4-g128" };

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        char again[64];
        snprintf(again, sizeof again, "%s-again", dtypes[i]);
        convert("tests/golden/quant/int4_ct_qwen3", ml_test_path(dtypes[i]), dtypes[i]);
        convert(ml_test_path(dtypes[i]), ml_test_path(again), dtypes[i]);
        same_files(ml_test_path(dtypes[i]), ml_test_path(again));
    }
}

static void formats_that_apply_to_nothing(void) {
    char said[4096], line[1024];

    snprintf(
        line, sizeof line,
        "convert --hf-checkpoint tests/golden/quant/fp8_qwen3 --save-hf %s --dtype mxfp4",
        ml_test_path("none"));
    CHECK(ml_test_miles(said, sizeof said, line) == 2);
    CHECK_HAS(said, "applies to no weight of this qwen3 model");
}

static const ml_test tests[] = {
    { "a GGUF file of Gemma 3 in Q4_0 gives ggml's tensors, ids and logits", gguf_gemma3 },
    { "a GGUF file of Qwen3 in Q8_0 gives ggml's tensors, ids and logits", gguf_qwen3 },
    { "a GGUF file of Llama in Q4_K gives ggml's tensors, ids and logits", gguf_llama_k },
    { "GGUF: digits are words of their own", gguf_single_digits },
    { "a GGUF file of Llama in F32 gives ggml's tensors, ids and logits", gguf_llama_f32,
      .fixtures = "formats/gguf" },
    { "a GGUF file of Llama in Q8_0 gives ggml's tensors, ids and logits", gguf_llama_q8,
      .fixtures = "formats/gguf" },
    { "a GGUF file of Llama in Q4_0 gives ggml's tensors, ids and logits", gguf_llama_q4,
      .fixtures = "formats/gguf" },
    { "a GGUF file of Gemma 3 in BF16 gives ggml's tensors, ids and logits",
      gguf_gemma3_bf16, .fixtures = "formats/gguf" },
    { "a GGUF file of Qwen3 in F16 gives ggml's tensors, ids and logits", gguf_qwen3_f16,
      .fixtures = "formats/gguf" },
    { "a GGUF file of Qwen3 in Q6_K gives ggml's tensors, ids and logits", gguf_qwen3_q6,
      .fixtures = "formats/gguf" },
    { "blocks of every type of ggml are dequantized as by gguf-py", gguf_blocks },
    { "a GGUF file's chat template is rendered", gguf_template },
    { "a GGUF file in Q8_0 is written again byte for byte", gguf_again },
    { "a split GGUF file is read as one", gguf_split },
    { "a split GGUF file with a part missing or misnamed is refused", gguf_split_wrong },
    { "a GGUF file has the logits of the wrapper that it was written from",
      gguf_of_release },
    { "a GGUF file keeps the frequencies of Llama 3", gguf_frequencies },
    { "a model that a GGUF file cannot describe is not written as one", gguf_cannot_say },
    { "Q8_0 of an F32 GGUF file has the bytes of ggml's quantizer", gguf_q8_of_f32,
      .fixtures = "formats/gguf" },
    { "a checkpoint written as GGUF keeps its token ids and logits", gguf_of_directory },
    { "pytorch_model.bin, zip or legacy, gives torch's tensors", single_bin },
    { "shards of pytorch_model.bin give torch's tensors", sharded_bin },
    { "tensors of torch distributed checkpoints equal torch's", dcp_tensors },
    { "a torch distributed checkpoint has its weights alone", dcp_weights },
    { "Megatron's torch_dist layout has the weights of the release", dcp_megatron,
      .fixtures = "formats/dcp" },
    { "Megatron's torch_dist layout of MLA has the weights of the release", dcp_mla },
    { "Megatron's torch_dist layout of sparse attention has the weights of the release",
      dcp_indexer },
    { "a run loads a torch_dist folder and has the bytes of its weights", dcp_run, 300 },
    { "a model rounded to its own format again has the recorded logits", rounded_again,
      120 },
    { "rounding a quantized model to the same format writes the same bytes", rounded_twice,
      120 },
    { "a format that applies to no weight is refused", formats_that_apply_to_nothing },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
