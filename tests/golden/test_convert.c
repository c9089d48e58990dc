/* `miles convert`: what does not change comes out byte for byte; what does, as transformers
 * and the safetensors library would have written it. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "io/checkpoint.h"
#include "model/weights.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define QWEN3 "tests/golden/data/qwen3"
#define SHARDED "tests/golden/sharded"

static int convert(const char *from, const char *to, const char *more, char *said,
                   size_t cap) {
    char line[2048];
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s %s", from, to,
             more);
    return ml_test_miles(said, cap, line);
}

static void convert_ok(const char *from, const char *to, const char *more) {
    char said[2048];
    if (convert(from, to, more, said, sizeof said) != 0 || said[0])
        ml_test_fail(__FILE__, __LINE__, "convert %s %s: %s", from, more, said);
}

static void same_file(const char *a_dir, const char *b_dir, const char *name) {
    char path[1024];
    ml_file a = { 0 }, b = { 0 };

    snprintf(path, sizeof path, "%s/%s", a_dir, name);
    CHECK(ml_file_map(&a, path, NULL) == ML_OK);
    snprintf(path, sizeof path, "%s/%s", b_dir, name);
    if (ml_file_map(&b, path, NULL) != ML_OK || !ml_str_eq(a.bytes, b.bytes))
        ml_test_fail(__FILE__, __LINE__, "%s differs from the one in %s", path, a_dir);
    ml_file_unmap(&a);
    ml_file_unmap(&b);
}

/* Every file of a is in b with the same bytes, but for weights, unless asked. */
static void same_dir(const char *a, const char *b) {
    DIR *d = opendir(a);
    struct dirent *e;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.' && strcmp(e->d_name, "golden.safetensors") != 0)
            same_file(a, b, e->d_name);
    closedir(d);
}

static void unchanged_is_identical(void) {
    static const char *const models[] = {
        "llama",         "llama_tied",   "qwen2",
        "qwen3_moe",     "gemma2",       "gemma3_text",
        "glm4",          "phi3",         "smollm3",
        "olmo2",         "mixtral",      "glm4_moe",
        "minimax_m2",    "gpt_oss",      "qwen3_next",
        "qwen3_5_text",  "nemotron_h",   "deepseek_v3",
        "deepseek_v32",  "deepseek_v4",  "glm_moe_dsa",
        "glm4_moe_lite", "gemma4_text",  "gemma4_text_moe",
        "llama4_text",   "gemma3n_text", "nemotron_h_latent"
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char from[256];
        const char *to = ml_test_path(models[i]);
        snprintf(from, sizeof from, "tests/golden/data/%s", models[i]);
        convert_ok(from, to, "");
        same_dir(from, to);
    }
}

/* Vision towers too, and the names that the text model has inside. */
static void unchanged_wrappers_are_identical(void) {
    static const char *const models[] = { "gemma3",     "gemma3n", "gemma4",
                                          "kimi_k25",   "llama4",  "mistral3",
                                          "qwen2_5_vl", "qwen3_5", "qwen3_5_moe",
                                          "qwen3_vl" };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char from[256], said[2048];
        const char *to = ml_test_path(models[i]);
        snprintf(from, sizeof from, "tests/golden/wrappers/%s", models[i]);
        CHECK(convert(from, to, "", said, sizeof said) == 0);
        CHECK_HAS(said, "tensors of other towers are copied unchanged");
        same_dir(from, to);
    }
}

static void unchanged_shards_are_identical(void) {
    const char *to = ml_test_path("out");
    convert_ok(SHARDED, to, "");
    same_dir(SHARDED, to);
}

static void splits_as_transformers(void) {
    const char *to = ml_test_path("out");
    convert_ok(QWEN3, to, "--max-shard-size 60KB");
    same_dir(SHARDED, to);
}

static void joins_again(void) {
    const char *to = ml_test_path("out");
    convert_ok(SHARDED, to, "--max-shard-size 1GB");
    same_file(QWEN3, to, "model.safetensors");
    CHECK(access(ml_test_path("out/model.safetensors.index.json"), F_OK) != 0);
}

/* Values of every tensor of b are those of a, rounded to dtype. */
static void check_rounded(const char *a_dir, const char *b_dir, ml_st_dtype dtype) {
    ml_checkpoint *a, *b;
    ml_err err = { 0 };

    if (ml_checkpoint_open(&a, a_dir, &err) || ml_checkpoint_open(&b, b_dir, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(a->n_tensor == b->n_tensor);
    for (int32_t i = 0; i < a->file[0]->n; i++) {
        const ml_st_tensor *x = &a->file[0]->tensor[i];
        const ml_st_tensor *y = ml_checkpoint_find(b, x->name, NULL);
        const float *v = x->data;
        const uint16_t *h = y->data;
        CHECK(y->dtype == dtype && y->bytes == x->bytes / 2);
        for (size_t k = 0; k < x->bytes / 4; k++)
            if (h[k] !=
                (dtype == ML_ST_BF16 ? ml_f32_to_bf16(v[k]) : ml_f32_to_f16(v[k]))) {
                ml_test_fail(__FILE__, __LINE__, "%s: element %zu", x->name.ptr, k);
                break;
            }
    }
    ml_checkpoint_close(a);
    ml_checkpoint_close(b);
}

/* Keys and values are stored as the checkpoint's matrices are, unless told otherwise. */
static void check_kv(const char *dir, ml_dtype dtype) {
    ml_checkpoint *c = NULL;
    ml_spec s;

    CHECK(ml_spec_open(&s, dir, NULL) == ML_OK);
    CHECK(ml_checkpoint_open(&c, dir, NULL) == ML_OK);
    CHECK(ml_weights_kv_dtype(&s, c, ML_WEIGHT_AUTO) == dtype);
    CHECK(ml_weights_kv_dtype(&s, c, ML_WEIGHT_F32) == ML_F32);
    CHECK(ml_weights_kv_dtype(&s, c, ML_WEIGHT_BF16) == ML_BF16);
    ml_checkpoint_close(c);
    ml_spec_close(&s);
}

static void dtypes(void) {
    const char *bf16 = ml_test_path("bf16"), *again = ml_test_path("again");
    const char *f16 = ml_test_path("f16");
    ml_file config = { 0 };

    convert_ok(QWEN3, bf16, "--dtype bf16");
    check_rounded(QWEN3, bf16, ML_ST_BF16);
    check_kv(QWEN3, ML_F32);
    check_kv(bf16, ML_BF16);
    CHECK(ml_file_map(&config, ml_test_path("bf16/config.json"), NULL) == ML_OK);
    CHECK(memmem(config.bytes.ptr, config.bytes.len, "\"dtype\": \"bfloat16\"", 19) !=
          NULL);
    ml_file_unmap(&config);
    convert_ok(bf16, again, "");
    same_dir(bf16, again);
    convert_ok(QWEN3, f16, "--dtype f16 --max-shard-size 30KB");
    check_rounded(QWEN3, f16, ML_ST_F16);
    convert_ok(f16, ml_test_path("f16b"), "");
    same_dir(f16, ml_test_path("f16b"));
}

static void loses_nothing(void) {
    const char *to = ml_test_path("out");
    char said[2048];

    convert_ok(QWEN3, to, "");
    CHECK(convert(QWEN3, to, "", said, sizeof said) == 1);
    CHECK_HAS(said, "already contains");
    CHECK(convert(QWEN3, ml_test_path("no/where"), "", said, sizeof said) == 1);
    CHECK_HAS(said, "no/where");
}

static const ml_test tests[] = {
    { "miles convert writes an unchanged checkpoint to the byte", unchanged_is_identical,
      120 },
    { "miles convert writes an unchanged multimodal checkpoint to the byte",
      unchanged_wrappers_are_identical },
    { "miles convert writes unchanged shards to the byte", unchanged_shards_are_identical },
    { "miles convert splits shards as transformers", splits_as_transformers },
    { "miles convert joins shards", joins_again },
    { "miles convert rounds to bf16 and f16", dtypes },
    { "miles convert overwrites nothing", loses_nothing },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
