/* Quantized checkpoints that do not fit together are refused with the tensor and what was
 * expected; those that do are read element by element. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "io/quant.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define MAX_TENSOR 5

typedef struct stored {
    const char *name;
    ml_st_dtype dtype;
    int32_t n_dim;
    int64_t shape[4];
    unsigned char fill;   /* of every byte */
    const int32_t *words; /* or these */
} stored;

typedef struct checkpoint_case {
    const char *config;
    stored t[MAX_TENSOR]; /* up to the first without a name */
    const char *message;  /* in the error */
} checkpoint_case;

static void write_checkpoint(const checkpoint_case *c) {
    static unsigned char bytes[4096];
    ml_st_tensor t[MAX_TENSOR] = { { .n_dim = 0 } };
    ml_st_writer *w;
    int32_t n = 0;

    for (; n < MAX_TENSOR && c->t[n].name; n++) {
        t[n] = (ml_st_tensor){ .name = ml_str_of(c->t[n].name),
                               .dtype = c->t[n].dtype,
                               .n_dim = c->t[n].n_dim };
        memcpy(t[n].shape, c->t[n].shape, sizeof c->t[n].shape);
    }
    CHECK(ml_file_replace(ml_test_path("config.json"), ml_str_of(c->config), NULL) ==
          ML_OK);
    CHECK(ml_st_create(&w, ml_test_path("model.safetensors"),
                       &(ml_st_layout){ .n = n, .tensor = t }, NULL) == ML_OK);
    for (int32_t i = 0; i < n; i++) {
        size_t size = 0;
        CHECK(ml_st_size(t[i].dtype, t[i].shape, t[i].n_dim, &size) &&
              size <= sizeof bytes);
        memset(bytes, c->t[i].fill, size);
        if (c->t[i].words)
            memcpy(bytes, c->t[i].words, size);
        CHECK(ml_st_write(w, i, 0, bytes, size, NULL) == ML_OK);
    }
    CHECK(ml_st_commit(w, NULL) == ML_OK);
}

#define FP8                                                                                \
    "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [4, "    \
    "4]}}"
#define GPTQ "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}"
#define PACKED "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}"

static const checkpoint_case refused[] = {
    { FP8,
      { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0 } },
      "a.weight_scale_inv (or .weight_scale, .scale) is missing" },
    { FP8, { { "a.weight", ML_ST_I8, 2, { 2, 16 }, 0 } }, "_scale, .scale) is missing" },
    { FP8,
      { { "a.weight", ML_ST_I8, 2, { 2, 10 }, 0 }, { "a.scale", ML_ST_U8, 1, { 1 }, 0 } },
      "a matrix of two codes in a byte, in groups of 32 was expected" },
    { FP8,
      { { "a.weight", ML_ST_I8, 2, { 2, 32 }, 0 },
        { "a.scale", ML_ST_F8_E8M0, 2, { 2, 1 }, 0 } },
      "an exponent for each 32 elements of a row was expected" },
    { FP8,
      { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0 },
        { "a.weight_scale_inv", ML_ST_F32, 2, { 3, 2 }, 0 } },
      "tensor a.weight_scale_inv is F32 [3, 2]; a scale for the tensor, for each of 6 rows "
      "or "
      "for each block of 4x4 was expected" },
    { FP8,
      { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0 },
        { "a.weight_scale_inv", ML_ST_I64, 2, { 2, 2 }, 0 } },
      "a scale of F32, BF16, F16, F8_E8M0 or U8 was expected" },
    { FP8,
      { { "a.weight", ML_ST_F8_E4M3, 3, { 2, 3, 5 }, 0 },
        { "a.weight_scale_inv", ML_ST_F32, 1, { 1 }, 0 } },
      "scales for each matrix of the stack was expected" },
    { "{}",
      { { "a.weight_packed", ML_ST_U8, 2, { 2, 16 }, 0 },
        { "a.weight_scale", ML_ST_U8, 2, { 2, 2 }, 0 } },
      "an exponent for each 32 elements of a row was expected" },
    { PACKED,
      { { "a.weight_packed", ML_ST_I32, 2, { 2, 2 }, 0 },
        { "a.weight_scale", ML_ST_BF16, 2, { 2, 3 }, 0 },
        { "a.weight_shape", ML_ST_I32, 1, { 2 }, 0 } },
      "two positive integers was expected" },
    { "{}",
      { { "a.weight", ML_ST_U8, 2, { 2, 16 }, 0 },
        { "a.weight_scale", ML_ST_F8_E4M3, 2, { 2, 2 }, 0 } },
      "a.weight_scale_2 is missing" },
    { "{}",
      { { "a_blocks", ML_ST_U8, 4, { 2, 3, 1, 16 }, 0 },
        { "a_scales", ML_ST_U8, 3, { 2, 2, 1 }, 0 } },
      "a U8 exponent for each block was expected" },
    { PACKED,
      { { "a.weight_packed", ML_ST_I32, 2, { 8, 2 }, 0 },
        { "a.weight_scale", ML_ST_BF16, 2, { 8, 3 }, 0 },
        { "a.weight_shape", ML_ST_I64, 1, { 2 }, 1 } },
      "two positive integers was expected" },
    { GPTQ,
      { { "a.qweight", ML_ST_I32, 2, { 2, 8 }, 0 },
        { "a.qzeros", ML_ST_I32, 2, { 2, 1 }, 0 },
        { "a.scales", ML_ST_F16, 2, { 2, 8 }, 0 },
        { "a.g_idx", ML_ST_I32, 1, { 16 }, 9 } },
      "tensor a.g_idx gives input 0 the group" },
    { GPTQ,
      { { "a.qweight", ML_ST_I32, 2, { 2, 8 }, 0 },
        { "a.qzeros", ML_ST_I32, 2, { 2, 2 }, 0 },
        { "a.scales", ML_ST_F16, 2, { 2, 8 }, 0 } },
      "I32 zero points for each group" },
    { FP8,
      { { "model.embed_tokens.weight", ML_ST_BF16, 2, { 2, 2 }, 0 },
        { "model.language_model.embed_tokens.weight", ML_ST_BF16, 2, { 2, 2 }, 0 } },
      "a text model is stored once" },
};

static void bad_parts_are_refused(void) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ml_checkpoint *c = NULL;
        ml_err err = { 0 };

        write_checkpoint(&refused[i]);
        CHECK(ml_checkpoint_open(&c, ml_test_dir(), &err) != ML_OK && !c);
        CHECK_HAS(err.msg, refused[i].message);
        CHECK_HAS(err.msg, ml_test_dir());
        ml_checkpoint_close(c);
    }
}

/* e4m3 0x39 is 1.125; bytes 0x3f make the f32 0.747... and the e8m0 exponent 2^-64. */
static void scales_have_several_shapes(void) {
    static const checkpoint_case rows[] = {
        { FP8,
          { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0x39 },
            { "a.weight_scale_inv", ML_ST_F32, 2, { 2, 2 }, 0x3f } },
          NULL },
        { FP8,
          { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0x39 },
            { "a.weight_scale", ML_ST_F32, 0, { 0 }, 0x3f },
            { "a.input_scale", ML_ST_F32, 0, { 0 }, 0x3f } },
          NULL },
        { FP8,
          { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0x39 },
            { "a.weight_scale", ML_ST_F32, 2, { 6, 1 }, 0x3f } },
          NULL },
        { FP8,
          { { "a.weight", ML_ST_F8_E4M3, 2, { 6, 5 }, 0x39 },
            { "a.weight_scale_inv", ML_ST_F8_E8M0, 2, { 6, 1 }, 0x3f } },
          NULL },
    };
    float scale;

    memset(&scale, 0x3f, sizeof scale);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ml_checkpoint *c = NULL;
        ml_err err = { 0 };
        const ml_st_tensor *t;
        float v[30];

        write_checkpoint(&rows[i]);
        if (ml_checkpoint_open(&c, ml_test_dir(), &err) != ML_OK) {
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
            continue;
        }
        t = ml_checkpoint_find(c, ml_str_of("a.weight"), NULL);
        CHECK(c->quantized && c->n_tensor == 1 && t && t->quant && t->dtype == ML_ST_BF16);
        ml_quant_read(t->quant, 0, 1, 5, v); /* a row; then columns */
        ml_quant_read(t->quant, 1, 5, 6, v + 5);
        for (int k = 0; k < 11; k++)
            CHECK(v[k] == 1.125f * (i == 3 ? 0x1p-64f : scale));
        ml_checkpoint_close(c);
    }
}

/* A tensor of which every element is the same: of codes and scales that are all alike. */
static void forms_are_read(void) {
    static const struct {
        checkpoint_case stored;
        const char *name;
        int32_t n_dim;
        int64_t shape[3];
        double value;
    } rows[] = {
        { { FP8,
            { { "experts.up", ML_ST_F8_E4M3, 3, { 2, 6, 5 }, 0x39 },
              { "experts.up_scale_inv", ML_ST_BF16, 3, { 2, 2, 2 }, 0x40 } },
            NULL },
          "experts.up",
          3,
          { 2, 6, 5 },
          1.125 * 3 },
        { { FP8,
            { { "experts.up", ML_ST_F8_E4M3, 3, { 2, 6, 5 }, 0x39 },
              { "experts.up_scale", ML_ST_F32, 3, { 2, 6, 1 }, 0 } },
            NULL },
          "experts.up",
          3,
          { 2, 6, 5 },
          0 },
        { { PACKED,
            { { "a.weight", ML_ST_I8, 2, { 6, 5 }, 0xff },
              { "a.weight_scale", ML_ST_BF16, 2, { 6, 1 }, 0x40 } },
            NULL },
          "a.weight",
          2,
          { 6, 5 },
          -3 },
        { { PACKED,
            { { "a.weight_packed", ML_ST_U8, 2, { 6, 32 }, 0x33 },
              { "a.weight_scale", ML_ST_U8, 2, { 6, 2 }, 0x80 } },
            NULL },
          "a.weight",
          2,
          { 6, 64 },
          1.5 * 2 },
        { { PACKED,
            { { "a.weight_packed", ML_ST_U8, 2, { 6, 32 }, 0x33 },
              { "a.weight_scale", ML_ST_F8_E4M3, 2, { 6, 4 }, 0x39 },
              { "a.weight_global_scale", ML_ST_F32, 1, { 1 }, 0x40 } },
            NULL },
          "a.weight",
          2,
          { 6, 64 },
          1.5 * (double)(1.125f / 3.00392150878906250f) },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ml_checkpoint *c = NULL;
        ml_err err = { 0 };
        const ml_st_tensor *t;
        int64_t n = 1;
        float v;

        write_checkpoint(&rows[i].stored);
        if (ml_checkpoint_open(&c, ml_test_dir(), &err) != ML_OK) {
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
            continue;
        }
        t = ml_checkpoint_find(c, ml_str_of(rows[i].name), NULL);
        CHECK(c->n_tensor == 1 && t && t->quant && t->n_dim == rows[i].n_dim);
        for (int32_t k = 0; t && k < t->n_dim; k++) {
            CHECK(t->shape[k] == rows[i].shape[k]);
            n *= t->shape[k];
        }
        for (int64_t k = 0; t && k < n; k++) {
            ml_quant_read(t->quant, k, 1, 1, &v);
            CHECK(v == (float)rows[i].value);
        }
        ml_checkpoint_close(c);
    }
}

/* 20 columns in groups of 8: three scales, the last for 4 columns. */
static void the_last_group_is_smaller(void) {
    static const int32_t shape[2] = { 1, 20 };
    static const checkpoint_case packed = {
        "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
        "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"group_size\": "
        "8}}}}}",
        { { "a.weight_packed", ML_ST_I32, 2, { 1, 3 }, 0x99 },
          { "a.weight_scale", ML_ST_BF16, 2, { 1, 3 }, 0x40 },
          { "a.weight_shape", ML_ST_I32, 1, { 2 }, 0, shape } },
        NULL
    };
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };
    const ml_st_tensor *t;
    float v[20];

    write_checkpoint(&packed);
    if (ml_checkpoint_open(&c, ml_test_dir(), &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    t = ml_checkpoint_find(c, ml_str_of("a.weight"), NULL);
    CHECK(t && t->shape[0] == 1 && t->shape[1] == 20);
    ml_quant_read(t->quant, 0, 1, 20, v);
    for (int k = 0; k < 20; k++)
        CHECK(v[k] == 3.0f);
    ml_checkpoint_close(c);
}

static const ml_test tests[] = {
    { "a quantized tensor whose parts do not fit is refused", bad_parts_are_refused },
    { "FP8 scales for blocks, rows and tensors are read", scales_have_several_shapes },
    { "stacks of FP8 matrices, INT8, MXFP4 and NVFP4 rows are read", forms_are_read },
    { "the last group of a row may have fewer columns", the_last_group_is_smaller },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
