/* Weights rounded to a low precision, against the codes and scales of Miles' converters,
 * DeepGEMM, Transformer Engine and triton_kernels, and against the values of Miles' INT4 training:
 * equal byte for byte. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/quantize.h"
#include "tests/support/test.h"

#define ROOT "tests/golden/quant/vectors/"

typedef struct vector_case {
    const char *file, *x; /* the weight */
    ml_quant_to to;
    const char *part[3]; /* codes, scales, the scale of the tensor; NULL: not recorded */
} vector_case;

static ml_st_file *open_vectors(const char *name) {
    char path[256];
    ml_st_file *f = NULL;
    ml_err err = { 0 };

    snprintf(path, sizeof path, ROOT "%s.safetensors", name);
    if (ml_st_open(&f, path, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return f;
}

/* The rows as f32, in a range that need not be the whole. */
static float *floats(const ml_st_tensor *t) {
    int64_t n = t->shape[0] * t->shape[1];
    float *x = malloc((size_t)n * sizeof *x);

    if (t->dtype == ML_ST_F32)
        memcpy(x, t->data, (size_t)n * 4);
    for (int64_t i = 0; t->dtype == ML_ST_BF16 && i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)t->data + i * 2, 2);
        x[i] = ml_bf16_to_f32(h);
    }
    return x;
}

/* Quantizes part i band by band, as an export does. */
static unsigned char *quantize(ml_quant_to to, int32_t i, const ml_quant_part *p,
                               const float *x, int64_t rows, int64_t cols, float amax) {
    size_t size = 0;
    unsigned char *out;

    CHECK(ml_st_size(p->dtype, p->shape, p->n_dim, &size));
    out = calloc(1, size + 1);
    if (!p->row_bytes)
        ml_quantize(to, i, x, rows, cols, amax, out);
    for (int64_t r = 0; p->row_bytes && r < rows; r += ML_QUANT_BAND) {
        int64_t n = rows - r < ML_QUANT_BAND ? rows - r : ML_QUANT_BAND;
        ml_quantize(to, i, x + r * cols, n, cols, amax,
                    out + (size_t)(r / p->rows) * p->row_bytes);
    }
    return out;
}

static void check_case(const ml_st_file *f, const vector_case *c) {
    const ml_st_tensor *t = ml_st_find(f, ml_str_of(c->x));
    ml_quant_part part[ML_QUANT_PARTS];
    float *x, amax;
    int32_t n;

    if (!t) {
        ml_test_fail(__FILE__, __LINE__, "%s is missing", c->x);
        return;
    }
    x = floats(t);
    amax = ml_quant_amax(x, t->shape[0] * t->shape[1], 0);
    n = ml_quant_parts(part, c->to, t->shape[0], t->shape[1]);
    CHECK(n >= 2);
    for (int32_t i = 0; i < 3 && i < n; i++) {
        const ml_st_tensor *want = c->part[i] ? ml_st_find(f, ml_str_of(c->part[i])) : NULL;
        unsigned char *got;
        if (!c->part[i])
            continue;
        got = quantize(c->to, i, &part[i], x, t->shape[0], t->shape[1], amax);
        if (!want || memcmp(got, want->data, want->bytes) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s differs", c->x, c->part[i]);
        free(got);
    }
    free(x);
}

static void check_cases(const vector_case *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ml_st_file *f = open_vectors(c[i].file);
        if (f)
            check_case(f, &c[i]);
        ml_st_close(f);
    }
}

#define FP8(w, name, to, in, scale)                                                        \
    {                                                                                      \
        "fp8", w in ".x", to, {                                                            \
            w "." name ".q", w "." name "." scale, NULL                                    \
        }                                                                                  \
    }
#define FP8_ALL(w)                                                                         \
    FP8(w, "offline", ML_TO_FP8, ".offline", "scale_inv"),                                 \
        FP8(w, "ue8m0", ML_TO_FP8_UE8M0, "", "scale_inv"),                                 \
        FP8(w, "channel", ML_TO_FP8_ROW, "", "scale"),                                     \
        FP8(w, "tensor", ML_TO_FP8_TENSOR, "", "scale")

static void fp8(void) {
    static const vector_case rows[] = { FP8_ALL("w0"), FP8_ALL("w1"), FP8_ALL("w2") };
    check_cases(rows, sizeof rows / sizeof *rows);
}

#define MXFP8(s)                                                                           \
    {                                                                                      \
        "mxfp8", s ".x", ML_TO_MXFP8, {                                                    \
            s ".q", s ".scale_u8", NULL                                                    \
        }                                                                                  \
    }
#define MXFP8_ALL(s)                                                                       \
    MXFP8(s ".awkward"), MXFP8(s ".boundary"), MXFP8(s ".f32"), MXFP8(s ".maxes"),         \
        MXFP8(s ".random"), MXFP8(s ".tiny"), MXFP8(s ".zeros")

static void mxfp8(void) {
    static const vector_case rows[] = { MXFP8_ALL("s0"), MXFP8_ALL("s1") };
    check_cases(rows, sizeof rows / sizeof *rows);
}

static void mxfp4(void) {
    static const vector_case rows[] = {
        { "mxfp4", "q0.x", ML_TO_MXFP4, { "q0.up.q", "q0.up.scale", NULL } },
        { "mxfp4", "q1.x", ML_TO_MXFP4, { "q1.up.q", "q1.up.scale", NULL } },
    };
    check_cases(rows, sizeof rows / sizeof *rows);
}

#define NVFP4(s)                                                                           \
    {                                                                                      \
        "nvfp4", s ".x", ML_TO_NVFP4, {                                                    \
            s ".default.q", s ".default.scale", s ".default.scale_2"                       \
        }                                                                                  \
    }
#define NVFP4_ALL(s)                                                                       \
    NVFP4(s ".awkward"), NVFP4(s ".boundary"), NVFP4(s ".f32"), NVFP4(s ".maxes"),         \
        NVFP4(s ".random"), NVFP4(s ".zeros")

static void nvfp4(void) {
    static const vector_case rows[] = { NVFP4_ALL("s0"), NVFP4_ALL("s1") };
    check_cases(rows, sizeof rows / sizeof *rows);
}

static void int4(void) {
    static const vector_case rows[] = {
        { "int4", "s0.x", ML_TO_INT4, { "s0.g32.weight_packed", "s0.g32.weight_scale" } },
        { "int4",
          "s1.x",
          ML_TO_INT4_G128,
          { "s1.g128.weight_packed", "s1.g128.weight_scale" } },
        { "int4", "s2.x", ML_TO_INT4, { "s2.g32.weight_packed", "s2.g32.weight_scale" } },
    };
    check_cases(rows, sizeof rows / sizeof *rows);
}

static void check_fake(const ml_st_file *f, const char *name, int64_t group) {
    char x_name[32], want_name[32];
    const ml_st_tensor *t, *want;
    int64_t n;
    uint16_t *got;
    float *x;

    snprintf(x_name, sizeof x_name, "%s.x", name);
    snprintf(want_name, sizeof want_name, "%s.g%d.qat.fake", name, (int)group);
    t = ml_st_find(f, ml_str_of(x_name));
    want = ml_st_find(f, ml_str_of(want_name));
    CHECK(t && want && t->shape[1] % group == 0);
    if (!t || !want)
        return;
    n = t->shape[0] * t->shape[1];
    x = floats(t);
    got = malloc((size_t)n * sizeof *got);
    ml_quant_fake_int4(x, t->shape[0], t->shape[1], group, got);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)want->data + i * 2, sizeof bits);
        if (got[i] != bits)
            ml_test_fail(__FILE__, __LINE__, "%s[%d] is %04x, not %04x", want_name, (int)i,
                         got[i], bits);
    }
    free(x);
    free(got);
}

static void fake_int4(void) {
    ml_st_file *f = open_vectors("int4");

    if (!f)
        return;
    check_fake(f, "s0", 32);
    check_fake(f, "s1", 128);
    check_fake(f, "s2", 32);
    ml_st_close(f);
}

/* What the vectors do not have: zeros, groups below the least scale, a shorter last group, an
 * infinity and a NaN. */
static void fake_int4_edges(void) {
    enum { COLS = 100, GROUP = 32 };
    float x[COLS] = { 0 };
    uint16_t got[COLS];

    x[1] = -0.0f;
    x[2] = -1e-6f; /* rounds to -0 */
    x[3] = 2e-5f;
    x[4] = -1.5e-5f; /* 1.5 of the least scale: to even */
    x[32] = 7.0f;
    x[33] = 0.5f; /* to even: 0 */
    x[34] = 2.5f;
    x[35] = -3.5f;
    x[64] = INFINITY;
    x[96] = 0.3f;
    x[99] = -0.7f;
    ml_quant_fake_int4(x, 1, COLS, GROUP, got);
    CHECK(got[0] == 0 && got[1] == 0x8000 && got[2] == 0x8000);
    CHECK(got[3] == ml_f32_to_bf16(2 * 1e-5f) && got[4] == ml_f32_to_bf16(-2 * 1e-5f));
    CHECK(got[32] == ml_f32_to_bf16(7.0f) && got[33] == 0);
    CHECK(got[34] == ml_f32_to_bf16(2.0f) && got[35] == ml_f32_to_bf16(-4.0f));
    for (int i = 64; i < 96; i++)
        CHECK(got[i] == 0x7fc0);
    CHECK(got[96] == ml_f32_to_bf16(3 * (0.7f / 7.0f)) && got[97] == 0);
    CHECK(got[99] == ml_f32_to_bf16(-7 * (0.7f / 7.0f)));
    x[0] = NAN;
    ml_quant_fake_int4(x, 1, COLS, GROUP, got);
    CHECK(got[0] == 0x7fc0 && got[31] == 0x7fc0 && got[32] == ml_f32_to_bf16(7.0f));
}

static const ml_test tests[] = {
    { "FP8 codes and scales of blocks, rows and tensors are the converters'", fp8 },
    { "MXFP8 codes and scales are Transformer Engine's", mxfp8 },
    { "MXFP4 codes and scales are those of triton_kernels", mxfp4 },
    { "NVFP4 codes and scales are Transformer Engine's", nvfp4 },
    { "INT4 codes and scales are those of Miles' export", int4 },
    { "INT4 training with f32 scales has the values of Miles' training", fake_int4 },
    { "INT4 training with f32 scales has Miles' zeros, NaN and shorter groups",
      fake_int4_edges },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
