/* Weights that stay quantized in memory: the codes of checkpoints, and the rules by which
 * others are quantized. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/quantize.h"
#include "model/weights_codes.h"
#include "tensor/codes.h"
#include "tests/support/must.h"

#define QUANT "tests/golden/quant/"

typedef struct fixture {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
} fixture;

static void open_fixture(fixture *f, const char *dir) {
    ml_arena_init(&f->arena, "quantized weights");
    MUST(ml_spec_open(&f->spec, dir, &err));
    MUST(ml_checkpoint_open(&f->checkpoint, dir, &err));
    MUST(ml_backend_cpu_open(&f->be, 2, NULL, &err));
}

static void close_fixture(fixture *f) {
    ml_backend_close(&f->be);
    ml_checkpoint_close(f->checkpoint);
    ml_spec_close(&f->spec);
    ml_arena_release(&f->arena);
}

static void load(fixture *f, ml_weights *w, ml_weight_dtype dtype) {
    MUST(ml_weights_load(w, &f->spec, f->checkpoint, dtype, &f->be, &f->arena, &err));
}

static float *values(fixture *f, const ml_weights *w, int32_t i) {
    const ml_param *p = &f->spec.param[i];
    float *v = ML_NEW(&f->arena, float, ml_param_count(p));

    for (int32_t e = 0; e < p->n_stack; e++)
        ml_weights_unpack(w, i, e, 0, p->shape[0], ML_F32,
                          v + e * p->shape[0] * p->shape[1]);
    return v;
}

/* Compares all quantized parameters; returns their number. */
static int32_t same_values(fixture *f, const ml_weights *coded, const ml_weights *other) {
    int32_t n = 0;

    for (int32_t i = 0; i < f->spec.n_param; i++) {
        size_t bytes = (size_t)ml_param_count(&f->spec.param[i]) * sizeof(float);
        if (!ml_dtype_codes(coded->t[i].dtype) &&
            !ml_weights_fake_group(&f->spec.param[i], coded->dtype))
            continue;
        n++;
        if (memcmp(values(f, coded, i), values(f, other, i), bytes) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s differs", f->spec.param[i].name);
    }
    return n;
}

/* ---- checkpoints ---- */

static void check_stored(const char *dir, ml_dtype want) {
    ml_weights stored, wide;
    fixture f;

    open_fixture(&f, dir);
    load(&f, &stored, ML_WEIGHT_STORED);
    load(&f, &wide, ML_WEIGHT_F32);
    CHECK((same_values(&f, &stored, &wide) > 0) == (want != ML_F32));
    for (int32_t i = 0; i < f.spec.n_param; i++)
        CHECK(!ml_dtype_codes(stored.t[i].dtype) || stored.t[i].dtype == want);
    ml_weights_close(&stored);
    ml_weights_close(&wide);
    close_fixture(&f);
}

static void keeps_codes(void) {
    check_stored(QUANT "fp8_qwen3", ML_FP8);
    check_stored(QUANT "fp8_ue8m0_deepseek_v3", ML_FP8);
    check_stored(QUANT "int4_ct_qwen3", ML_INT4_G128);
    check_stored(QUANT "int4_kimi_deepseek_v3", ML_INT4);
    check_stored(QUANT "mxfp4_gpt_oss", ML_MXFP4);
}

static void others_are_dequantized(void) {
    check_stored(QUANT "awq_llama", ML_F32);
    check_stored(QUANT "gptq_llama", ML_F32);
    check_stored(QUANT "nvfp4_glm4_moe", ML_F32);
    check_stored(QUANT "mxfp8_qwen3_moe", ML_F32);
    check_stored("tests/golden/data/llama", ML_F32);
}

/* ---- rules ---- */

/* FP8 and INT4 in memory have the codes that files of these formats have. */
static void check_rule(ml_dtype dtype, ml_quant_to to, int64_t rows, int64_t cols) {
    const ml_codes *f = ml_dtype_codes(dtype);
    const int64_t n = rows * cols, groups = (cols + f->group - 1) / f->group;
    float *x = calloc((size_t)n, sizeof *x), *scale = calloc((size_t)n, sizeof *scale);
    uint8_t *code = calloc((size_t)n, 1), *file = calloc((size_t)n, 1);

    srand(3);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rand() % 2001 - 1000) * 1e-4f;
    ml_quantize_rows(dtype, x, rows, cols, code, scale);
    ml_quantize(to, 0, x, rows, cols, 0, file);
    for (int64_t i = 0; i < n; i++)
        CHECK(code[i] == (f->bits == 8 ? file[i] : file[i / 2] >> (i % 2 * 4) & 15));
    ml_quantize(to, 1, x, rows, cols, 0, file);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t at = (f->bf16_scale ? r : r / 128) * groups + g;
            uint16_t half;
            float want;
            memcpy(&half, file + at * 2, sizeof half);
            if (f->bf16_scale)
                want = ml_bf16_to_f32(half);
            else
                memcpy(&want, file + at * 4, sizeof want);
            CHECK((f->bf16_scale ? ml_bf16_to_f32(ml_f32_to_bf16(scale[r * groups + g]))
                                 : scale[r * groups + g]) == want);
        }
    free(x);
    free(scale);
    free(code);
    free(file);
}

static void rules_of_files(void) {
    check_rule(ML_FP8, ML_TO_FP8, 128, 300);
    check_rule(ML_FP8, ML_TO_FP8, 37, 128);
    check_rule(ML_INT4, ML_TO_INT4, 20, 96);
    check_rule(ML_INT4_G128, ML_TO_INT4_G128, 5, 256);
}

static const void *tensor_of(const ml_st_file *f, const char *name) {
    const ml_st_tensor *t = ml_st_find(f, ml_str_of(name));
    CHECK(t != NULL);
    return t ? t->data : NULL;
}

static void nf4_of_bitsandbytes(void) {
    enum { ROWS = 24, COLS = 128 };
    uint8_t code[ROWS * COLS];
    float scale[ROWS * COLS / 64];
    ml_st_file *f;

    MUST(ml_st_open(&f, QUANT "vectors/nf4.safetensors", &err));
    ml_quantize_rows(ML_NF4, tensor_of(f, "x"), ROWS, COLS, code, scale);
    CHECK(memcmp(code, tensor_of(f, "codes"), sizeof code) == 0);
    CHECK(memcmp(scale, tensor_of(f, "absmax"), sizeof scale) == 0);
    for (int i = 0; i < ROWS * COLS; i++)
        CHECK(ml_code_value(ML_NF4, code[i]) * scale[i / 64] ==
              ((const float *)tensor_of(f, "dq"))[i]);
    ml_st_close(f);
}

/* Activations: the values of the codes and scales of Miles' kernel. */
static void fp8_activations(void) {
    enum { ROWS = 5, COLS = 256 };
    ml_st_file *f;
    const uint16_t *x;
    const uint8_t *code;
    const float *scale;

    MUST(ml_st_open(&f, QUANT "vectors/fp8.safetensors", &err));
    x = tensor_of(f, "a0.x");
    code = tensor_of(f, "a0.f32.q");
    scale = tensor_of(f, "a0.f32.scale");
    for (int r = 0; r < ROWS; r++) {
        float row[COLS], got[COLS];
        for (int k = 0; k < COLS; k++)
            row[k] = ml_bf16_to_f32(x[r * COLS + k]);
        ml_fp8_round(ML_FP8_BLOCKWISE, row, COLS, 0, 100, got);
        ml_fp8_round(ML_FP8_BLOCKWISE, row, COLS, 100, COLS - 100, got + 100);
        for (int k = 0; k < COLS; k++)
            CHECK(got[k] == ml_e4m3_to_f32(code[r * COLS + k]) * scale[r * 2 + k / 128]);
    }
    ml_st_close(f);
}

/* In MXFP8 activations have the rule of weights: io/quantize.h, which golden vectors check. */
static void mxfp8_inputs_are_rounded(void) {
    enum { COLS = 70 };
    float x[COLS], got[COLS], scale[3];
    uint8_t code[COLS];

    for (int i = 0; i < COLS; i++)
        x[i] = sinf((float)i) * (i < 32 ? 1.0f : i < 64 ? 3e-7f : 1e30f);
    ml_quantize_rows(ML_MXFP8, x, 1, COLS, code, scale);
    ml_fp8_round(ML_MXFP8, x, COLS, 0, 40, got);
    ml_fp8_round(ML_MXFP8, x, COLS, 40, COLS - 40, got + 40);
    for (int i = 0; i < COLS; i++) {
        int e;
        CHECK(frexpf(scale[i / 32], &e) == 0.5f);
        CHECK(got[i] == ml_code_value(ML_MXFP8, code[i]) * scale[i / 32]);
        CHECK(fabsf(got[i] - x[i]) <= fabsf(x[i]) / 16 + scale[i / 32] / 1024);
    }
}

static void kv_rows_are_nearest(void) {
    static const float most[] = { 448.0f, 57344.0f, 127.0f };
    static const float scales[] = { 0x1p-6f, 0x1p-13f, 5.25f / 127.0f };
    static const float least[] = { 0x1p-42f, 0x1p-49f, 1e-10f / 127.0f };
    enum { COLS = 40 };

    for (int f = 0; f < 3; f++) {
        const ml_dtype t = (ml_dtype)(ML_KV_E4M3 + f);
        float x[COLS], scale;
        uint8_t code[COLS];
        for (int i = 0; i < COLS; i++)
            x[i] = sinf((float)(i + 1)) * (i % 3 ? 3.0f : 1e-3f);
        x[7] = -5.25f;
        scale = ml_kv_encode(t, x, COLS, code);
        CHECK(scale == scales[f]);
        CHECK(t != ML_KV_INT8 || ml_kv_code_value(t, code[7]) == -most[f]);
        for (int i = 0; i < COLS; i++) {
            float y = ml_kv_code_value(t, code[i]) * scale, far = fabsf(y - x[i]);
            for (int c = 0; c < 256; c++) { /* no code is nearer, but for rounding */
                float v = ml_kv_code_value(t, (uint8_t)c);
                CHECK(!(fabsf(v) <= most[f]) ||
                      fabsf(v * scale - x[i]) >= far - 1e-6f * fabsf(x[i]));
            }
        }
        x[3] = NAN;
        CHECK(isnan(ml_kv_encode(t, x, COLS, code)));
        x[3] = -INFINITY;
        CHECK(isnan(ml_kv_encode(t, x, COLS, code)));
        memset(x, 0, sizeof x);
        CHECK(ml_kv_encode(t, x, COLS, code) == least[f] && code[5] == 0);
        x[5] = most[f] / 64.0f; /* no number above it: it needs no larger scale */
        CHECK(ml_kv_encode(t, x, COLS, code) == 0x1p-6f);
        CHECK(ml_kv_code_value(t, code[5]) == most[f]);
    }
}

/* The largest of a group is +-127; no value is further from its element than half a step. */
static void int8_is_nearest(void) {
    enum { COLS = 200 };
    float x[COLS], scale[2];
    uint8_t code[COLS];

    for (int i = 0; i < COLS; i++)
        x[i] = sinf((float)i) * (i < 128 ? 1.0f : 1e-3f);
    ml_quantize_rows(ML_INT8, x, 1, COLS, code, scale);
    for (int i = 0; i < COLS; i++) {
        float s = scale[i / 128];
        CHECK(fabsf(ml_code_value(ML_INT8, code[i]) * s - x[i]) <= 0.5001f * s);
    }
}

static void not_finite(void) {
    static const ml_dtype dtypes[] = { ML_FP8, ML_INT8, ML_INT4, ML_NF4 };
    float x[256] = { [3] = NAN, [200] = INFINITY }, scale[256], out[256];
    uint8_t code[256];
    unsigned char *data = NULL;

    for (int i = 0; i < 4; i++) {
        ml_tensor t = {
            .dtype = dtypes[i], .layout = ML_PANELS, .n_dim = 2, .shape = { 1, 256 }
        };
        data = realloc(data, ml_tensor_bytes(&t));
        memset(data, 0, ml_tensor_bytes(&t));
        t.data = data;
        ml_quantize_rows(t.dtype, x, 1, 256, code, scale);
        ml_codes_put(&t, 0, 0, 256, code);
        ml_codes_put_scales(&t, 0, scale);
        ml_codes_read(&t, 0, 0, 256, out);
        CHECK(isnan(out[3]) && isnan(out[200]));
    }
    free(data);
}

/* Rows have the numbers of panels, in as many bytes; K is neither a multiple of 16 nor of 128. */
static void rows_and_panels(void) {
    enum { ROWS = 21, COLS = 200 };
    static float x[ROWS * COLS], scale[ROWS * 2], out[2][COLS];
    static uint8_t code[ROWS * COLS];
    ml_tensor t[2];

    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = sinf((float)i);
    ml_quantize_rows(ML_FP8_BLOCKWISE, x, ROWS, COLS, code, scale);
    for (int i = 0; i < 2; i++) {
        t[i] = (ml_tensor){ .dtype = ML_FP8_BLOCKWISE,
                            .layout =
                                ml_codes_layout(ML_FP8_BLOCKWISE, i ? ML_ROWS : ML_PANELS),
                            .n_dim = 2,
                            .shape = { ROWS, COLS } };
        t[i].data = calloc(1, ml_tensor_bytes(&t[i]));
        for (int r = 0; r < ROWS; r++) {
            ml_codes_put(&t[i], r, 0, COLS, code + r * COLS);
            ml_codes_put_scales(&t[i], r, scale + r * 2);
        }
    }
    CHECK(ml_codes_layout(ML_FP8, ML_ROWS) == ML_PANELS);
    CHECK(ml_tensor_bytes(&t[0]) == ml_tensor_bytes(&t[1]));
    CHECK(memcmp((uint8_t *)t[1].data + 20 * ml_codes_row_bytes(COLS), code + 20 * COLS,
                 COLS) == 0);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 2; i++)
            ml_codes_read(&t[i], r, 8, COLS - 8, out[i]);
        CHECK(memcmp(out[0], out[1], (COLS - 8) * sizeof(float)) == 0);
    }
    free(t[0].data);
    free(t[1].data);
}

/* ---- sets ---- */

static void quantized_again(void) {
    static const ml_weight_dtype dtypes[] = { ML_WEIGHT_FP8, ML_WEIGHT_INT4, ML_WEIGHT_NF4,
                                              ML_WEIGHT_QAT_F32_SCALE,
                                              ML_WEIGHT_QAT_G128_F32_SCALE };
    fixture f;
    ml_weights wide, loaded, copy;

    open_fixture(&f, "tests/golden/data/qwen3_moe");
    load(&f, &wide, ML_WEIGHT_F32);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        load(&f, &loaded, dtypes[i]);
        MUST(ml_weights_quantize(&copy, &wide, &f.spec, dtypes[i], &f.be, &f.arena, &err));
        MUST(ml_weights_requantize(&copy, &wide, &f.spec, 2, &err));
        CHECK(same_values(&f, &copy, &loaded) > 0);
        ml_weights_close(&copy);
        ml_weights_close(&loaded);
    }
    ml_weights_close(&wide);
    close_fixture(&f);
}

/* INT4 training quantizes the experts of a model that has them. */
static void experts_alone(void) {
    fixture f;
    ml_weights w;

    open_fixture(&f, QUANT "mxfp8_qwen3_moe");
    load(&f, &w, ML_WEIGHT_QAT);
    for (int32_t i = 0; i < f.spec.n_param; i++) {
        const bool expert = strstr(f.spec.param[i].name, ".experts.") != NULL;
        CHECK((ml_dtype_codes(w.t[i].dtype) != NULL) == expert);
        CHECK(ml_weights_fake_group(&f.spec.param[i], ML_WEIGHT_QAT_F32_SCALE) ==
              (expert ? 32 : 0));
        CHECK(ml_weights_fake_group(&f.spec.param[i], ML_WEIGHT_QAT_G128_F32_SCALE) ==
              (expert ? 128 : 0));
    }
    ml_weights_close(&w);
    close_fixture(&f);
}

/* Rows have 48 and 56 inputs: their last groups are shorter. */
static void f32_scales(void) {
    fixture f;
    ml_weights wide, fake;
    int32_t n = 0;

    open_fixture(&f, "tests/golden/data/llama");
    load(&f, &wide, ML_WEIGHT_F32);
    load(&f, &fake, ML_WEIGHT_QAT_F32_SCALE);
    for (int32_t i = 0; i < f.spec.n_param; i++) {
        const ml_param *p = &f.spec.param[i];
        uint16_t *want = ML_NEW(&f.arena, uint16_t, ml_param_count(p));
        const float *got;
        if (!p->linear)
            continue;
        got = values(&f, &fake, i);
        ml_quant_fake_int4(values(&f, &wide, i), p->shape[0], p->shape[1], 32, want);
        for (int64_t k = 0; k < ml_param_count(p); k++)
            CHECK(got[k] == ml_bf16_to_f32(want[k]));
        n++;
    }
    CHECK(n > 0);
    ml_weights_close(&wide);
    ml_weights_close(&fake);
    close_fixture(&f);
}

/* ---- a layer ---- */

/* Zeros, aligned as ops need them. */
static void *aligned(ml_arena *a, size_t bytes) {
    const uintptr_t at = (uintptr_t)ml_arena_take(a, bytes + 64, 1);
    return (void *)((at + 63) & ~(uintptr_t)63);
}

static ml_tensor matrix(ml_arena *a, ml_dtype dtype, ml_layout layout, int64_t rows,
                        int64_t cols) {
    ml_tensor t = { .dtype = dtype, .layout = layout, .n_dim = 2, .shape = { rows, cols } };

    t.data = aligned(a, ml_tensor_bytes(&t));
    return t;
}

/* A recorded matrix, as f32. */
static ml_tensor recorded(ml_arena *a, const ml_st_file *f, const char *set,
                          const char *name) {
    char whole[64];
    const ml_st_tensor *t;
    ml_tensor m;

    snprintf(whole, sizeof whole, "%s.%s", set, name);
    t = ml_st_find(f, ml_str_of(whole));
    if (!t) {
        ml_test_fail(__FILE__, __LINE__, "%s is missing", whole);
        exit(1);
    }
    m = matrix(a, ML_F32, ML_ROWS, t->shape[0], t->shape[1]);
    ml_source_f32(t, 0, 1, ml_tensor_count(&m), m.data);
    return m;
}

static void read_matrix(const void *ud, int64_t row, int64_t n, float *out) {
    const ml_tensor *m = ud;
    const int64_t cols = m->shape[1];

    memcpy(out, (const float *)m->data + row * cols, (size_t)(n * cols) * sizeof *out);
}

/* Relative, of the norm: sums are in another order. */
static void check_output(const ml_tensor *got, const ml_tensor *want) {
    double wrong = 0, size = 0;

    for (int64_t i = 0; i < ml_tensor_count(want); i++) {
        const double w = (double)((const float *)want->data)[i];
        const double d = (double)((const float *)got->data)[i] - w;
        wrong += d * d;
        size += w * w;
    }
    CHECK(size > 0 && sqrt(wrong / size) <= 1e-6);
}

/* The gradient of the weights below is recorded in bf16. */
static void check_gradient(const ml_tensor *got, const ml_tensor *want) {
    const int64_t cols = want->shape[1];

    for (int64_t r = 0; r < want->shape[0]; r++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = ml_row_at(ml_tensor_row(got, r), c);
            CHECK(ml_bf16_to_f32(ml_f32_to_bf16(((const float *)got->data)[at])) ==
                  ((const float *)want->data)[r * cols + c]);
        }
}

static void check_layer(fixture *f, const ml_st_file *file, const char *weight,
                        const char *set, int64_t group) {
    ml_arena *a = &f->arena;
    const ml_tensor w = recorded(a, file, weight, "x");
    const ml_tensor y = recorded(a, file, set, "qat.output");
    const ml_tensor dw = recorded(a, file, set, "qat.grad_w");
    const ml_ops *ops = f->be.ops;
    ml_rows rows = { 0 };
    ml_op_args op = { .attr = &(ml_op_attr){ 0 }, .rows = &rows };

    op.in[0] = recorded(a, file, set, "qat.input");
    op.dout[0] = recorded(a, file, set, "qat.upstream");
    op.w[0] = matrix(a, ML_BF16, f->be.linear, w.shape[0], w.shape[1]);
    op.dw[0] = matrix(a, ML_F32, f->be.linear, w.shape[0], w.shape[1]);
    op.out[0] = matrix(a, ML_F32, ML_ROWS, y.shape[0], y.shape[1]);
    op.din[0] = matrix(a, ML_F32, ML_ROWS, y.shape[0], w.shape[1]);
    rows.n_token = (int32_t)y.shape[0];
    ml_weights_encode(&op.w[0], group, read_matrix, &w, NULL);
    op.scratch = aligned(a, ops->scratch(f->be.stream, ML_OP_LINEAR, &op, false));
    ops->forward[ML_OP_LINEAR](f->be.stream, &op);
    op.scratch = aligned(a, ops->scratch(f->be.stream, ML_OP_LINEAR, &op, true));
    ops->backward[ML_OP_LINEAR](f->be.stream, &op);
    check_output(&op.out[0], &y);
    check_gradient(&op.dw[0], &dw);
}

static void layers_of_miles(void) {
    fixture f;
    ml_st_file *file;

    open_fixture(&f, "tests/golden/data/llama");
    MUST(ml_st_open(&file, QUANT "vectors/int4.safetensors", &err));
    check_layer(&f, file, "s0", "s0.g32", 32);
    check_layer(&f, file, "s1", "s1.g128", 128);
    check_layer(&f, file, "s2", "s2.g32", 32);
    ml_st_close(file);
    close_fixture(&f);
}

static const ml_test tests[] = {
    { "codes of a quantized checkpoint stay in memory with the values of its weights",
      keeps_codes, 60 },
    { "formats without a dtype in memory are dequantized", others_are_dequantized, 60 },
    { "weights quantized in memory have the codes of exported files", rules_of_files, 60 },
    { "NF4 codes and scales are those of bitsandbytes", nf4_of_bitsandbytes, 60 },
    { "activations in FP8 are those of Miles' kernel", fp8_activations, 60 },
    { "MXFP8 inputs are rounded by the rule of weights", mxfp8_inputs_are_rounded, 60 },
    { "rows of a KV cache have the nearest codes", kv_rows_are_nearest, 60 },
    { "INT8 codes are the nearest", int8_is_nearest, 60 },
    { "a group with an infinity or NaN is NaN", not_finite, 60 },
    { "rows of FP8 codes have the numbers of panels", rows_and_panels, 60 },
    { "a quantized copy of a weight set has the codes of a loaded one", quantized_again,
      60 },
    { "INT4 training quantizes the experts of a model that has them", experts_alone, 60 },
    { "INT4 training with f32 scales has the numbers of its rule in memory", f32_scales,
      60 },
    { "a layer with f32 scales has the outputs and gradients of Miles' INT4 training",
      layers_of_miles, 60 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
