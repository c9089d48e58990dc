#include "tensor/codes.h"

#include <math.h>

static const float int4_value[16] = {
    -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7
};
static const float e2m1_value[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                      -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
/* Quantiles of the normal distribution (QLoRA, arXiv 2305.14314), as bitsandbytes has them. */
static const float nf4_value[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static const ml_codes formats[ML_N_DTYPE] = {
    [ML_FP8] = { .bits = 8, .group = 128 },
    [ML_INT8] = { .bits = 8, .group = 128 },
    [ML_INT4] = { 4, 32, .bf16_scale = true, .value = int4_value },
    [ML_INT4_G128] = { 4, 128, .bf16_scale = true, .value = int4_value },
    [ML_NF4] = { 4, 64, .value = nf4_value },
    [ML_FP8_BLOCKWISE] = { .bits = 8, .group = 128 },
    [ML_MXFP8] = { .bits = 8, .group = 32, .bf16_scale = true },
    [ML_MXFP4] = { 4, 32, .bf16_scale = true, .value = e2m1_value },
};

const ml_codes *ml_dtype_codes(ml_dtype t) {
    return formats[t].bits ? &formats[t] : NULL;
}

float ml_e4m3_to_f32(uint8_t code) {
    int e = code >> 3 & 15, m = code & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);

    if (e == 15 && m == 7)
        v = NAN;
    return code & 128 ? -v : v;
}

float ml_code_value(ml_dtype t, uint8_t code) {
    if (formats[t].value)
        return formats[t].value[code];
    return t == ML_INT8 ? (float)(int8_t)code : ml_e4m3_to_f32(code);
}

/* Nearest even, for |x| < 2^22. */
static float nearest_integer(float x) {
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* A format of 8 bits: its largest number, its smallest normal one, and one over its smallest. */
typedef struct small_float {
    int mantissa, bias;
    float most, normal, steps;
} small_float;

static const small_float e4m3 = { 3, 7, 448.0f, 0x1p-6f, 0x1p9f };
static const small_float e5m2 = { 2, 15, 57344.0f, 0x1p-14f, 0x1p16f };

/* Nearest even, saturating; x is not NaN. */
static uint8_t to_small_float(float x, const small_float *f) {
    const int drop = 23 - f->mantissa;
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    const float size = fabsf(x) < f->most ? fabsf(x) : f->most;
    uint32_t a;

    if (size < f->normal)
        return (uint8_t)((int)nearest_integer(size * f->steps) | sign);
    memcpy(&a, &size, sizeof a);
    a += (1u << (drop - 1)) - 1 + (a >> drop & 1);
    return (uint8_t)((a >> drop) - ((uint32_t)(127 - f->bias) << f->mantissa)) | sign;
}

uint8_t ml_f32_to_e4m3(float x) {
    if (isnan(x))
        return signbit(x) ? 0xff : 0x7f;
    return to_small_float(x, &e4m3);
}

/* --- KV pages --------------------------------------------------------------------- */

bool ml_dtype_is_kv_codes(ml_dtype t) {
    return t >= ML_KV_E4M3;
}

static float most_of(ml_dtype t) {
    return t == ML_KV_E4M3 ? e4m3.most : t == ML_KV_E5M2 ? e5m2.most : 127.0f;
}

static uint8_t kv_code(ml_dtype t, float x) {
    if (t == ML_KV_INT8)
        return (uint8_t)(int8_t)nearest_integer(x); /* at most 127 by its scale */
    return to_small_float(x, t == ML_KV_E4M3 ? &e4m3 : &e5m2);
}

/* The scale of a row whose largest magnitude is `most`. */
static float kv_scale(ml_dtype t, float most) {
    float scale = most / most_of(t);
    uint32_t u;

    if (t == ML_KV_INT8)
        return scale;
    memcpy(&u, &scale, sizeof u);
    u = (u + 0x7fffff) & 0x7f800000u; /* up to a power of two */
    memcpy(&scale, &u, sizeof u);
    return scale;
}

float ml_kv_encode(ml_dtype t, const float *x, int64_t n, uint8_t *code) {
    float most = 1e-10f, scale, inverse;

    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= most)) /* a NaN stays */
            most = isnan(most) ? most : fabsf(x[i]);
    if (!(most < HUGE_VALF)) {
        memset(code, 0, (size_t)n);
        return NAN;
    }
    scale = kv_scale(t, most);
    inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; i++)
        code[i] = kv_code(t, x[i] * inverse);
    return scale;
}

float ml_kv_code_value(ml_dtype t, uint8_t code) {
    if (t == ML_KV_E5M2)
        return ml_f16_to_f32((uint16_t)(code << 8));
    return t == ML_KV_INT8 ? (float)(int8_t)code : ml_e4m3_to_f32(code);
}

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

size_t ml_codes_scale_bytes(ml_dtype t, int64_t cols) {
    const ml_codes *f = &formats[t];
    const int64_t n = divide_up(cols, f->group) * ML_LANES * (f->bf16_scale ? 2 : 4);
    return (size_t)(divide_up(n, 64) * 64);
}

size_t ml_codes_panel_bytes(ml_dtype t, int64_t cols) {
    if (t == ML_FP8_BLOCKWISE)
        return (size_t)(ML_LANES * ml_codes_row_bytes(cols));
    return ml_codes_scale_bytes(t, cols) +
           (size_t)(divide_up(cols, 8) * ML_LANES * formats[t].bits);
}

ml_layout ml_codes_layout(ml_dtype t, ml_layout linear) {
    return t == ML_FP8_BLOCKWISE ? linear : ML_PANELS;
}

int64_t ml_codes_row_scales(int64_t cols) {
    return divide_up(cols, 16) * 16;
}

int64_t ml_codes_row_bytes(int64_t cols) {
    const int64_t scales = divide_up(cols, formats[ML_FP8_BLOCKWISE].group) * 4;
    return divide_up(ml_codes_row_scales(cols) + scales, 128) * 128;
}

/* Where the codes and the scales of a row are. */
typedef struct row_codes {
    unsigned char *code, *scale;
    int64_t lane, step; /* of a scale and the next group's, in scales */
    int64_t code_step;  /* of codes of 8 bits, in bytes */
} row_codes;

static row_codes find_row(const ml_tensor *m, int64_t row) {
    unsigned char *panel =
        (unsigned char *)m->data +
        (size_t)(row / ML_LANES) * ml_codes_panel_bytes(m->dtype, m->shape[1]);
    const int64_t lane = row % ML_LANES;

    if (m->layout == ML_ROWS) {
        unsigned char *at = panel + lane * ml_codes_row_bytes(m->shape[1]);
        return (row_codes){ at, at + ml_codes_row_scales(m->shape[1]), 0, 1, 1 };
    }
    return (row_codes){ panel + ml_codes_scale_bytes(m->dtype, m->shape[1]), panel, lane,
                        ML_LANES, ML_LANES };
}

/* The byte with the code of input k; one of 4 bits is its lower half for even k. */
static unsigned char *byte_at(const ml_codes *f, const row_codes *r, int64_t k) {
    if (f->bits == 8)
        return &r->code[k * r->code_step + r->lane];
    return &r->code[(k / 8 * ML_LANES + r->lane) * 4 + k % 8 / 2];
}

void ml_codes_put(const ml_tensor *m, int64_t row, int64_t k, int64_t n,
                  const uint8_t *code) {
    const ml_codes *f = &formats[m->dtype];
    const row_codes r = find_row(m, row);

    for (int64_t end = divide_up(k + n, 8) * 8, i = k; i < end; i++) {
        const uint8_t c = i < k + n ? code[i - k] : 0;
        unsigned char *at = byte_at(f, &r, i);
        *at = f->bits == 8 ? c : (uint8_t)(i % 2 ? (*at & 15) | c << 4 : c);
    }
}

static float scale_at(const ml_codes *f, const row_codes *r, int64_t group) {
    const int64_t i = group * r->step + r->lane;
    uint16_t h;
    float s;

    if (f->bf16_scale) {
        memcpy(&h, r->scale + i * 2, sizeof h);
        return ml_bf16_to_f32(h);
    }
    memcpy(&s, r->scale + i * 4, sizeof s);
    return s;
}

void ml_codes_put_scales(const ml_tensor *m, int64_t row, const float *scale) {
    const ml_codes *f = &formats[m->dtype];
    const int64_t n = divide_up(m->shape[1], f->group);
    const row_codes r = find_row(m, row);

    for (int64_t g = 0; g < n; g++) {
        const int64_t at = g * r.step + r.lane;
        const uint16_t h = ml_f32_to_bf16(scale[g]);
        if (f->bf16_scale)
            memcpy(r.scale + at * 2, &h, sizeof h);
        else
            memcpy(r.scale + at * 4, &scale[g], sizeof *scale);
    }
}

void ml_codes_read(const ml_tensor *m, int64_t row, int64_t k, int64_t n, float *out) {
    const ml_codes *f = &formats[m->dtype];
    const row_codes r = find_row(m, row);

    for (int64_t i = k; i < k + n; i++) {
        const uint8_t c = *byte_at(f, &r, i);
        const uint8_t own = f->bits == 8 ? c : i % 2 ? c >> 4 : c & 15;
        out[i - k] = ml_code_value(m->dtype, own) * scale_at(f, &r, i / f->group);
    }
}

/* --- activations ------------------------------------------------------------------ */

/* The nearest e4m3 value of |v| <= 448, ties to even: adding 1.5 * 2^20 times the power of two
 * below |v|, at least 2^-6, makes the FPU round at an eighth of it.  NaN stays NaN. */
static float nearest_e4m3(float v) {
    uint32_t u;
    float power, magic;

    memcpy(&u, &v, sizeof u);
    u &= 0x7f800000u;
    memcpy(&power, &u, sizeof u);
    power = power > 0x1p-6f ? power : 0x1p-6f;
    magic = power * 0x1.8p20f;
    return (v + magic) - magic;
}

uint8_t ml_mxfp8_exponent(float amax) {
    const float up = amax * (1.0f / 448.0f);
    uint32_t u, e, m;

    memcpy(&u, &up, sizeof u);
    e = u >> 23;
    m = u & 0x7fffff;
    if (m && e != 254 && !(e == 0 && m <= 0x400000)) /* up to 2^-127 it is 0 */
        e++;
    return (uint8_t)e;
}

bool ml_dtype_rounds_inputs(ml_dtype t) {
    return t == ML_FP8_BLOCKWISE || t == ML_MXFP8;
}

static float amax_of(const float *x, int64_t n, float most) {
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* The scale of a group of n elements, and its inverse. */
static void scale_group(ml_dtype t, const float *x, int64_t n, float *scale,
                        float *inverse) {
    if (t == ML_MXFP8) {
        const int e = ml_mxfp8_exponent(amax_of(x, n, 0.0f));
        *scale = ldexpf(1.0f, e - 127);
        *inverse = ldexpf(1.0f, 127 - e);
    } else {
        *scale = amax_of(x, n, 1e-10f) / 448.0f;
        *inverse = 1.0f / *scale;
    }
}

void ml_fp8_round(ml_dtype t, const float *row, int64_t cols, int64_t begin, int64_t n,
                  float *out) {
    const int64_t size = formats[t].group;

    for (int64_t i = begin; i < begin + n;) {
        const int64_t group = i / size * size,
                      left = cols - group < size ? cols - group : size;
        const int64_t end = group + left < begin + n ? group + left : begin + n;
        float scale, inverse;
        scale_group(t, row + group, left, &scale, &inverse);
        for (; i < end; i++) {
            float v = row[i] * inverse;
            v = v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v;
            out[i - begin] = nearest_e4m3(v) * scale;
        }
    }
}
