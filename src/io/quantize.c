#include "io/quantize.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/bug.h"

/* --- codes ------------------------------------------------------------------------ */

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float clamp(float x, float most) {
    return x > most ? most : x < -most ? -most : x;
}

/* Nearest even, saturating at 6. */
static uint8_t to_e2m1(float x, bool minus) {
    float a = fabsf(x);
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
               (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(code | (minus ? 8 : 0));
}

/* bitsandbytes' rule: the upper of two neighbours above their mean. */
static uint8_t to_nf4(float x) {
    static const float above[15] = {
        -0.8480964004993439f,   -0.6106329262256622f,  -0.4599952697753906f,
        -0.33967943489551544f,  -0.23460740596055984f, -0.13791173323988914f,
        -0.045525018125772475f, 0.03979014977812767f,  0.1202552504837513f,
        0.2035212516784668f,    0.2920137718319893f,   0.3893125355243683f,
        0.5016634166240692f,    0.6427869200706482f,   0.8614784181118011f,
    };
    uint8_t code = 0;

    while (code < 15 && x > above[code])
        code++;
    return code;
}

/* The exponent of the next power of two from x on; none for 0. */
static uint32_t ceil_exponent(float x) {
    uint32_t u = bits_of(x);
    return (u >> 23) + ((u & 0x7fffff) != 0);
}

static float power_of_two(int exponent) {
    return ldexpf(1.0f, exponent - 127);
}

float ml_quant_amax(const float *x, int64_t n, float most) {
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* --- a block ---------------------------------------------------------------------- */

/* The scale of a block: its number and its code. */
typedef struct scale {
    float value;
    uint8_t code;
} scale;

static float at_least(float x, float least) {
    return x > least ? x : least;
}

static scale mxfp8_scale(float amax) {
    const uint8_t e = ml_mxfp8_exponent(amax);
    return (scale){ .value = power_of_two(254 - e), .code = e };
}

static scale mxfp4_scale(float amax) {
    uint32_t e = ceil_exponent(amax / 6.0f);
    return (scale){ .value = e ? 1.0f / power_of_two((int)e) : 0.0f, .code = (uint8_t)e };
}

/* G: the scale of the tensor, which maps its largest magnitude to 448 * 6. */
static float nvfp4_whole(float amax) {
    float g = 448.0f * 6.0f / amax;
    return g < FLT_MAX ? g : FLT_MAX;
}

static scale nvfp4_scale(float amax, float tensor_amax) {
    float g = nvfp4_whole(tensor_amax);
    uint8_t code = ml_f32_to_e4m3(clamp(amax * (g * (1.0f / 6.0f)), 448.0f));
    float by = 1.0f / (ml_e4m3_to_f32(code) * (1.0f / g));
    return (scale){ .value = by < FLT_MAX ? by : FLT_MAX, .code = code };
}

static scale scale_of(ml_quant_to to, float amax, float tensor_amax) {
    switch (to) {
    case ML_TO_FP8: return (scale){ .value = at_least(amax, 1e-10f) / 448.0f };
    case ML_TO_FP8_UE8M0:
        return (scale){ .value = power_of_two(
                            (int)ceil_exponent(at_least(amax, 1e-4f) / 448.0f)) };
    case ML_TO_FP8_ROW:
    case ML_TO_FP8_TENSOR: return (scale){ .value = at_least(amax, 1e-12f) / 448.0f };
    case ML_TO_MXFP8: return mxfp8_scale(amax);
    case ML_TO_INT4:
    case ML_TO_INT4_G128: return (scale){ .value = at_least(amax * (1.0f / 7.0f), 1e-5f) };
    case ML_TO_MXFP4: return mxfp4_scale(amax);
    case ML_TO_INT8: return (scale){ .value = at_least(amax / 127.0f, 1e-10f) };
    case ML_TO_NF4: return (scale){ .value = amax };
    default: return nvfp4_scale(amax, tensor_amax);
    }
}

/* The code of x; the MX and NV formats multiply by the scale's inverse. */
static uint8_t code_of(ml_quant_to to, float x, scale s) {
    switch (to) {
    case ML_TO_FP8:
    case ML_TO_FP8_ROW: return ml_f32_to_e4m3(x / s.value);
    case ML_TO_FP8_UE8M0: return ml_f32_to_e4m3(x * (1.0f / s.value));
    case ML_TO_FP8_TENSOR: /* torch divides bf16 by a number: rounded to bf16 */
        return ml_f32_to_e4m3(ml_bf16_to_f32(ml_f32_to_bf16(x / s.value)));
    case ML_TO_MXFP8: return ml_f32_to_e4m3(x * s.value);
    case ML_TO_INT4:
    case ML_TO_INT4_G128: return (uint8_t)((int)rintf(x / s.value) + 8);
    case ML_TO_MXFP4: return to_e2m1(x * s.value, signbit(x)); /* -0 keeps its sign */
    case ML_TO_INT8: return (uint8_t)(int8_t)rintf(x / s.value);
    case ML_TO_NF4: return to_nf4(s.value > 0 ? x * (1.0f / s.value) : 0.0f);
    default: return to_e2m1(x * s.value, x < 0);
    }
}

/* --- shapes ----------------------------------------------------------------------- */

typedef struct shape {
    int64_t rows, cols; /* of a block; 0: all */
    int32_t bits;       /* of a code */
} shape;

static shape block_of(ml_quant_to to) {
    switch (to) {
    case ML_TO_FP8:
    case ML_TO_FP8_UE8M0: return (shape){ 128, 128, 8 };
    case ML_TO_FP8_ROW: return (shape){ 1, 0, 8 };
    case ML_TO_FP8_TENSOR: return (shape){ 0, 0, 8 };
    case ML_TO_MXFP8: return (shape){ 1, 32, 8 };
    case ML_TO_INT4: return (shape){ 1, 32, 4 };
    case ML_TO_INT4_G128: return (shape){ 1, 128, 4 };
    case ML_TO_MXFP4: return (shape){ 1, 32, 4 };
    case ML_TO_INT8: return (shape){ 1, 128, 8 };
    case ML_TO_NF4: return (shape){ 1, 64, 4 };
    default: return (shape){ 1, 16, 4 };
    }
}

bool ml_quant_needs_amax(ml_quant_to to) {
    return to == ML_TO_FP8_TENSOR || to == ML_TO_NVFP4;
}

static bool is_int4(ml_quant_to to) {
    return to == ML_TO_INT4 || to == ML_TO_INT4_G128;
}

static int64_t blocks(int64_t n, int64_t size) {
    return size ? (n + size - 1) / size : 1;
}

static ml_quant_part codes_part(ml_quant_to to, int64_t rows, int64_t cols) {
    ml_quant_part p = { .suffix = ".weight",
                        .dtype = ML_ST_F8_E4M3,
                        .n_dim = 2,
                        .shape = { rows, cols },
                        .rows = 1,
                        .row_bytes = (size_t)cols };

    if (block_of(to).bits == 8)
        return p;
    p.dtype = is_int4(to) ? ML_ST_I32 : ML_ST_U8;
    p.suffix = is_int4(to) ? ".weight_packed" : to == ML_TO_MXFP4 ? "_blocks" : ".weight";
    p.shape[1] = is_int4(to) ? cols / 8 : cols / 2;
    p.row_bytes = (size_t)cols / 2;
    return p;
}

static ml_quant_part scale_part(ml_quant_to to, int64_t rows, int64_t cols) {
    shape b = block_of(to);
    int64_t across = blocks(cols, b.cols), down = blocks(rows, b.rows);
    ml_quant_part p = { .suffix = ".weight_scale",
                        .dtype = ML_ST_F32,
                        .n_dim = 2,
                        .shape = { down, across },
                        .rows = b.rows,
                        .row_bytes = (size_t)across * 4 };

    if (to == ML_TO_FP8 || to == ML_TO_FP8_UE8M0 || to == ML_TO_MXFP8)
        p.suffix = ".weight_scale_inv";
    if (to == ML_TO_FP8_TENSOR)
        return (ml_quant_part){
            .suffix = ".weight_scale", .dtype = ML_ST_F32, .n_dim = 1, .shape = { 1 }
        };
    if (is_int4(to)) {
        p.dtype = ML_ST_BF16;
        p.row_bytes = (size_t)across * 2;
    } else if (to == ML_TO_MXFP8 || to == ML_TO_MXFP4 || to == ML_TO_NVFP4) {
        p.dtype = to == ML_TO_NVFP4 ? ML_ST_F8_E4M3 : ML_ST_U8;
        p.row_bytes = (size_t)across;
        if (to == ML_TO_MXFP4)
            p.suffix = "_scales";
    }
    return p;
}

int32_t ml_quant_parts(ml_quant_part out[ML_QUANT_PARTS], ml_quant_to to, int64_t rows,
                       int64_t cols) {
    shape b = block_of(to);

    if (rows < 1 || cols < 1 || (b.rows == 1 && b.cols && cols % b.cols))
        return 0;
    out[0] = codes_part(to, rows, cols);
    out[1] = scale_part(to, rows, cols);
    if (is_int4(to)) {
        out[2] = (ml_quant_part){
            .suffix = ".weight_shape", .dtype = ML_ST_I64, .n_dim = 1, .shape = { 2 }
        };
        return 3;
    }
    if (to != ML_TO_NVFP4)
        return 2;
    out[2] = (ml_quant_part){ .suffix = ".weight_scale_2", .dtype = ML_ST_F32 };
    out[3] = (ml_quant_part){ .suffix = ".input_scale", .dtype = ML_ST_F32 };
    return 4;
}

/* --- quantizing ------------------------------------------------------------------- */

static void put_scale(ml_quant_to to, scale s, int64_t i, void *out) {
    uint8_t *byte = out;
    uint16_t half;

    if (is_int4(to)) {
        half = ml_f32_to_bf16(s.value);
        memcpy(byte + i * 2, &half, sizeof half);
    } else if (to == ML_TO_MXFP8 || to == ML_TO_MXFP4 || to == ML_TO_NVFP4) {
        byte[i] = s.code;
    } else {
        memcpy(byte + i * 4, &s.value, sizeof s.value);
    }
}

static void put_code(ml_quant_to to, uint8_t code, int64_t i, uint8_t *out) {
    if (block_of(to).bits == 8)
        out[i] = code;
    else if (i % 2 == 0)
        out[i / 2] = code;
    else
        out[i / 2] |= (uint8_t)(code << 4);
}

/* A block of r x c elements with `cols` between rows. */
static float block_amax(const float *x, int64_t r, int64_t c, int64_t cols) {
    float most = 0;
    for (int64_t i = 0; i < r; i++)
        most = ml_quant_amax(x + i * cols, c, most);
    return most;
}

static void put_single(ml_quant_to to, const ml_quant_part *p, int64_t rows, int64_t cols,
                       float amax, void *out) {
    const int64_t size[2] = { rows, cols };
    float v = 1.0f;

    if (p->dtype == ML_ST_I64) {
        memcpy(out, size, sizeof size);
        return;
    }
    if (to == ML_TO_FP8_TENSOR)
        v = scale_of(to, amax, amax).value;
    else if (strcmp(p->suffix, ".weight_scale_2") == 0)
        v = 1.0f / nvfp4_whole(amax);
    memcpy(out, &v, sizeof v);
}

void ml_quantize(ml_quant_to to, int32_t part, const float *x, int64_t rows, int64_t cols,
                 float amax, void *out) {
    ml_quant_part parts[ML_QUANT_PARTS];
    shape b = block_of(to);
    int64_t down = b.rows ? b.rows : rows, wide = b.cols ? b.cols : cols, n = 0;

    ML_BUG_IF(part >= ml_quant_parts(parts, to, rows, cols));
    if (!parts[part].row_bytes) {
        put_single(to, &parts[part], rows, cols, amax, out);
        return;
    }
    for (int64_t r = 0; r < rows; r += down)
        for (int64_t c = 0; c < cols; c += wide, n++) {
            int64_t nr = rows - r < down ? rows - r : down;
            int64_t nc = cols - c < wide ? cols - c : wide;
            const float *at = x + r * cols + c;
            float most = b.rows ? block_amax(at, nr, nc, cols) : amax;
            scale s = scale_of(to, most, amax);
            if (part == 1) {
                put_scale(to, s, n, out);
                continue;
            }
            for (int64_t i = 0; i < nr; i++)
                for (int64_t k = 0; k < nc; k++)
                    put_code(to, code_of(to, at[i * cols + k], s), (r + i) * cols + c + k,
                             out);
        }
}

/* --- in memory -------------------------------------------------------------------- */

static bool block_is_finite(const float *x, int64_t r, int64_t c, int64_t cols) {
    for (int64_t i = 0; i < r; i++)
        for (int64_t k = 0; k < c; k++)
            if (!isfinite(x[i * cols + k]))
                return false;
    return true;
}

static ml_quant_to rule_of(ml_dtype dtype) {
    switch (dtype) {
    case ML_FP8:
    case ML_FP8_BLOCKWISE: return ML_TO_FP8;
    case ML_MXFP8: return ML_TO_MXFP8;
    case ML_INT8: return ML_TO_INT8;
    case ML_INT4: return ML_TO_INT4;
    case ML_INT4_G128: return ML_TO_INT4_G128;
    default: ML_BUG_IF(dtype != ML_NF4); return ML_TO_NF4;
    }
}

void ml_quantize_rows(ml_dtype dtype, const float *x, int64_t rows, int64_t cols,
                      uint8_t *code, float *scales) {
    const ml_quant_to to = rule_of(dtype);
    const shape b = block_of(to);
    const int64_t groups = blocks(cols, b.cols);

    for (int64_t r = 0; r < rows; r += b.rows)
        for (int64_t c = 0; c < cols; c += b.cols) {
            const int64_t nr = rows - r < b.rows ? rows - r : b.rows;
            const int64_t nc = cols - c < b.cols ? cols - c : b.cols;
            const float *at = x + r * cols + c;
            scale s = scale_of(to, block_amax(at, nr, nc, cols), 0);
            bool finite = block_is_finite(at, nr, nc, cols);
            float number = to == ML_TO_MXFP8 ? power_of_two(s.code) : s.value;
            if (!finite) /* no code is NaN: the block is, as a whole */
                number = NAN;
            for (int64_t i = 0; i < nr; i++) {
                uint8_t *out = code + (r + i) * cols + c;
                scales[(r + i) * groups + c / b.cols] = number;
                for (int64_t k = 0; k < nc; k++)
                    out[k] = finite ? code_of(to, at[i * cols + k], s) : 1;
            }
        }
}

/* Miles clamps the quotients to 7, which they do not exceed after rounding. */
static void fake_group(const float *x, int64_t n, uint16_t *out) {
    const float step = at_least(ml_quant_amax(x, n, 0) / 7.0f, 1e-5f);
    const bool finite = block_is_finite(x, 1, n, n);

    for (int64_t i = 0; i < n; i++)
        out[i] = ml_f32_to_bf16(finite ? rintf(x[i] / step) * step : NAN);
}

void ml_quant_fake_int4(const float *x, int64_t rows, int64_t cols, int64_t group,
                        uint16_t *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += group)
            fake_group(x + r * cols + c, cols - c < group ? cols - c : group,
                       out + r * cols + c);
}
