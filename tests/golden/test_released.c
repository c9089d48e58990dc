/* Checkpoints as they are released, quantized or multimodal, against what other libraries
 * compute from them.
 *
 * tests/golden/quant has a tiny model for each quantization, written by transformers,
 * compressed-tensors, gptqmodel or Miles' converters, with the weights and logits of the
 * dequantized model (golden.safetensors); the dequantized weights must be equal byte for
 * byte.  tests/golden/wrappers has multimodal models and the logits of transformers for
 * sequences without images (tools/gen_wrapper_golden.py). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "io/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define ROOT "tests/golden/quant/"
#define WRAPPERS "tests/golden/wrappers/"

static void run(const char *command, const char *dir, const char *more) {
    char line[2048], said[4096];

    snprintf(line, sizeof line, "%s --hf-checkpoint %s %s", command, dir, more);
    if (ml_test_miles(said, sizeof said, line) != 0 ||
        (said[0] && !strstr(said, "tensors of other towers are copied unchanged")))
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

static ml_st_file *open_file(const char *path) {
    ml_st_file *f = NULL;
    ml_err err = { 0 };

    if (ml_st_open(&f, path, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return f;
}

static void check_logits(const char *dir, const char *golden, const ml_st_file *want) {
    const char *out = ml_test_path("scores.safetensors");
    char more[1024];
    ml_st_file *got;
    int n = 0;

    snprintf(more, sizeof more, "--input %s --output %s --logits --dtype f32", golden, out);
    run("score", dir, more);
    got = open_file(out);
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
        if (!(most <= 1e-5 * size))
            ml_test_fail(__FILE__, __LINE__, "%s: off by %g of %g", a->name.ptr, most,
                         size);
    }
    CHECK(n > 0);
    ml_st_close(got);
}

/* weight.NAME: the first rows of a weight as f32; of expert 0 where experts are one tensor,
 * which has inputs as rows. */
static void check_weights(const char *dir, const ml_st_file *want) {
    const char *out = ml_test_path("f32");
    char more[1024];
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };
    int n = 0;

    snprintf(more, sizeof more, "--save-hf %s --dtype f32", out);
    run("convert", dir, more);
    if (ml_checkpoint_open(&c, out, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (int32_t i = 0; i < want->n; i++) {
        const ml_st_tensor *a = &want->tensor[i], *b;
        const float *x = a->data, *y;
        bool stacked;

        if (strncmp(a->name.ptr, "weight.", 7) != 0)
            continue;
        n++;
        b = ml_checkpoint_find(c, ml_str_of(a->name.ptr + 7), NULL);
        CHECK(b && b->dtype == ML_ST_F32 && !b->quant);
        if (!b)
            continue;
        stacked = b->n_dim == 3 && b->shape[2] != a->shape[1];
        y = b->data;
        for (int64_t k = 0; k < a->shape[0] * a->shape[1]; k++) {
            int64_t row = k / a->shape[1], col = k % a->shape[1];
            float v = stacked ? y[col * b->shape[2] + row] : y[k];
            if (memcmp(&x[k], &v, sizeof v) != 0) {
                ml_test_fail(__FILE__, __LINE__, "%s: element %lld is %.9g, expected %.9g",
                             a->name.ptr, (long long)k, (double)v, (double)x[k]);
                break;
            }
        }
    }
    CHECK(n == 2);
    ml_checkpoint_close(c);
}

/* The export has the unquantized form: its config says nothing of a quantization, and it
 * computes what the quantized checkpoint does with bf16 weights, bit for bit. */
static void check_export(const char *dir, const char *golden) {
    const char *bf16 = ml_test_path("bf16");
    char more[1024], config[1024];
    ml_file a = { 0 }, b = { 0 };

    snprintf(more, sizeof more, "--save-hf %s --dtype bf16", bf16);
    run("convert", dir, more);
    snprintf(config, sizeof config, "%s/config.json", bf16);
    CHECK(ml_file_map(&a, config, NULL) == ML_OK);
    CHECK(a.bytes.len > 0 && !memmem(a.bytes.ptr, a.bytes.len, "quantization_config", 19));
    ml_file_unmap(&a);
    snprintf(more, sizeof more, "--input %s --output %s --dtype bf16", golden,
             ml_test_path("a.safetensors"));
    run("score", dir, more);
    snprintf(more, sizeof more, "--input %s --output %s --dtype bf16", golden,
             ml_test_path("b.safetensors"));
    run("score", bf16, more);
    CHECK(ml_file_map(&a, ml_test_path("a.safetensors"), NULL) == ML_OK);
    CHECK(ml_file_map(&b, ml_test_path("b.safetensors"), NULL) == ML_OK);
    CHECK(ml_str_eq(a.bytes, b.bytes));
    ml_file_unmap(&a);
    ml_file_unmap(&b);
}

static void check_format(const char *name) {
    char dir[512], golden[600];
    ml_st_file *want;

    snprintf(dir, sizeof dir, "%s%s", ROOT, name);
    snprintf(golden, sizeof golden, "%s/golden.safetensors", dir);
    want = open_file(golden);
    if (!want)
        return;
    check_logits(dir, golden, want);
    check_weights(dir, want);
    check_export(dir, golden);
    ml_st_close(want);
}

static void check_wrapper(const char *name) {
    char dir[512], golden[600];
    ml_st_file *want;

    snprintf(dir, sizeof dir, "%s%s", WRAPPERS, name);
    snprintf(golden, sizeof golden, "%s/golden.safetensors", dir);
    want = open_file(golden);
    if (!want)
        return;
    check_logits(dir, golden, want);
    ml_st_close(want);
}

#define WRAPPED(X)                                                                         \
    X(gemma3, "the text model of gemma3")                                                  \
    X(gemma3n, "the text model of gemma3n")                                                \
    X(gemma4, "the text model of gemma4")                                                  \
    X(kimi_k25, "the text model of kimi_k25")                                              \
    X(llama4, "the text model of llama4")                                                  \
    X(mistral3, "the text model of mistral3")                                              \
    X(qwen2_5_vl, "the text model of qwen2_5_vl")                                          \
    X(qwen3_5, "the text model of qwen3_5")                                                \
    X(qwen3_5_moe, "the text model of qwen3_5_moe")                                        \
    X(qwen3_vl, "the text model of qwen3_vl")

#define FORMATS(X)                                                                         \
    X(awq_llama, "AWQ int4 of llama")                                                      \
    X(fp4_deepseek_v4, "FP8 and FP4 experts under the released names of deepseek_v4")      \
    X(fp8_qwen3, "FP8 in blocks of 128x128 of qwen3")                                      \
    X(fp8_ue8m0_deepseek_v3, "FP8 with power-of-two scales of deepseek_v3")                \
    X(gptq_llama, "GPTQ int4 of llama")                                                    \
    X(gptq_qwen3_act_order, "GPTQ int4 with activation order of qwen3")                    \
    X(int4_ct_qwen3, "compressed-tensors INT4 in groups of 128 of qwen3")                  \
    X(int4_kimi_deepseek_v3, "compressed-tensors INT4 experts of deepseek_v3")             \
    X(mxfp4_gpt_oss, "MXFP4 experts of gpt_oss")                                           \
    X(mxfp8_qwen3_moe, "MXFP8 of qwen3_moe")                                               \
    X(nvfp4_glm4_moe, "NVFP4 experts of glm4_moe")

#define FORMAT_TEST(dir, name)                                                             \
    static void test_##dir(void) {                                                         \
        check_format(#dir);                                                                \
    }
FORMATS(FORMAT_TEST)

#define WRAPPER_TEST(dir, name)                                                            \
    static void test_##dir(void) {                                                         \
        check_wrapper(#dir);                                                               \
    }
WRAPPED(WRAPPER_TEST)

#define ROW(dir, name) { name, test_##dir, 60 },
static const ml_test tests[] = { FORMATS(ROW) WRAPPED(ROW){ 0 } };

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
