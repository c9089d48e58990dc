#include "tensor/tensor.h"

#include <string.h>

#include "tensor/codes.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [ML_F32] = { "f32", 4 },
    [ML_BF16] = { "bf16", 2 },
    [ML_F16] = { "f16", 2 },
    [ML_I32] = { "i32", 4 },
    [ML_U8] = { "u8", 1 },
    [ML_FP8] = { "fp8", 1 },
    [ML_INT8] = { "int8", 1 },
    [ML_INT4] = { "int4", 1 },
    [ML_INT4_G128] = { "int4-g128", 1 },
    [ML_NF4] = { "nf4", 1 },
    [ML_MXFP4] = { "mxfp4", 1 },
    [ML_FP8_BLOCKWISE] = { "fp8-blockwise", 1 },
    [ML_MXFP8] = { "mxfp8", 1 },
    [ML_KV_E4M3] = { "fp8_e4m3", 1 },
    [ML_KV_E5M2] = { "fp8_e5m2", 1 },
    [ML_KV_INT8] = { "int8", 1 },
};

size_t ml_dtype_bytes(ml_dtype t) {
    return dtypes[t].bytes;
}

const char *ml_dtype_name(ml_dtype t) {
    return dtypes[t].name;
}

int64_t ml_tensor_count(const ml_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    return n;
}

size_t ml_tensor_panel_bytes(const ml_tensor *t) {
    const int64_t cols = t->shape[t->n_dim - 1];

    if (ml_dtype_codes(t->dtype))
        return ml_codes_panel_bytes(t->dtype, cols);
    return (size_t)(ML_LANES * cols) * ml_dtype_bytes(t->dtype);
}

size_t ml_tensor_bytes(const ml_tensor *t) {
    int64_t n = ml_tensor_count(t), rows;

    if (n == 0 || (t->layout != ML_PANELS && !ml_dtype_codes(t->dtype)))
        return (size_t)n * ml_dtype_bytes(t->dtype);
    rows = t->shape[t->n_dim - 2];
    n /= rows * t->shape[t->n_dim - 1]; /* members of a stack */
    return (size_t)(n * ((rows + ML_LANES - 1) / ML_LANES)) * ml_tensor_panel_bytes(t);
}

bool ml_tensor_has_pairs(const ml_tensor *t) {
    return t->layout == ML_PANELS && t->dtype == ML_BF16 && t->shape[t->n_dim - 1] % 2 == 0;
}

ml_row_walk ml_tensor_row(const ml_tensor *t, int64_t row) {
    int64_t cols = t->shape[t->n_dim - 1], lane = row % ML_LANES;
    int pair = ml_tensor_has_pairs(t);

    if (t->layout == ML_ROWS)
        return (ml_row_walk){ .first = row * cols, .step = 1 };
    return (ml_row_walk){ .first = (row - lane) * cols + (lane << pair),
                          .step = ML_LANES << pair,
                          .pair = pair };
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float ml_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return float_of(sign | 0x7f800000u | man << 13);
    if (exp == 0) { /* zero or denormal: man * 2^-24 is exact */
        float f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_of(sign | (exp + 112u) << 23 | man << 13);
}

uint16_t ml_f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 makes the FPU round at 2^-24 */
        uint32_t r = bits_of(float_of(a) + 0.5f);
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | (a - 0x38000000u) >> 13);
}
