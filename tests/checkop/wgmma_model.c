/* wgmma_model.c - FP8 products of Hopper's tensor cores in software, bit for bit.
 *
 * A step of wgmma with k32 and e4m3 operands aligns the 32 products and the accumulator to the largest
 * exponent among them, cuts each at 2^-13 of it, adds these integers, and keeps 13 bits after the
 * leading one of the sum.  The sums of a group of 128 inputs start from zero. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/checkop/checkop.h"

#include "tensor/codes.h"

enum { STEP = 32, GROUP = 128, FRACTION = 13 };

/* A product of two codes: mantissa 2^(exponent - 6).  Denormal codes have the exponent of the smallest
 * normal ones. */
typedef struct product {
    int mantissa, exponent;
} product;

static int mantissa_of(uint8_t code) {
    const int m = (code & 7) | (code & 0x78 ? 8 : 0);
    return code & 0x80 ? -m : m;
}

static int exponent_of(uint8_t code) {
    const int e = code >> 3 & 15;
    return (e ? e : 1) - 7;
}

static int64_t cut(int64_t x, int right) {
    const int64_t size = llabs(x);
    const int64_t moved = right > 62 ? 0 : right > 0 ? size >> right : size << -right;
    return x < 0 ? -moved : moved;
}

static int leading_bit(int64_t x) {
    int n = -1;

    for (int64_t size = llabs(x); size; size >>= 1)
        n++;
    return n;
}

/* One step; acc has at most FRACTION bits after its leading one. */
static float step(float acc, const uint8_t *a, const uint8_t *b, int64_t n) {
    product p[STEP];
    int top = acc != 0 ? ilogbf(acc) : -1000;
    int64_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        p[i] = (product){ mantissa_of(a[i]) * mantissa_of(b[i]),
                          exponent_of(a[i]) + exponent_of(b[i]) };
        if (p[i].mantissa && p[i].exponent > top)
            top = p[i].exponent;
    }
    for (int64_t i = 0; i < n; i++)
        sum += cut(p[i].mantissa, top - p[i].exponent + 6 - FRACTION);
    if (acc != 0)
        sum += (int64_t)ldexpf(acc, FRACTION - top);
    if (leading_bit(sum) > FRACTION)
        sum = cut(cut(sum, leading_bit(sum) - FRACTION), FRACTION - leading_bit(sum));
    return ldexpf((float)sum, top - FRACTION);
}

float ck_wgmma_dot(const ck_fp8_row *x, const ck_fp8_row *w, int64_t k) {
    float acc = 0;

    for (int64_t g = 0; g * GROUP < k; g++) {
        const int64_t end = k < (g + 1) * GROUP ? k : (g + 1) * GROUP;
        float sum = 0;
        for (int64_t i = g * GROUP; i < end; i += STEP)
            sum = step(sum, x->code + i, w->code + i, end - i < STEP ? end - i : STEP);
        acc = fmaf(sum, x->scale[g] * w->scale[g], acc);
    }
    return acc;
}

static ck_fp8_row new_row(ml_arena *a, int64_t k) {
    return (ck_fp8_row){ ML_NEW(a, uint8_t, k), ML_NEW(a, float, k / GROUP + 1) };
}

ck_fp8_row ck_fp8_input(ml_arena *a, const float *x, int64_t k) {
    const ck_fp8_row r = new_row(a, k);

    for (int64_t i = 0; i < k; i++) {
        float amax = 1e-10f, v;
        const int64_t first = i / GROUP * GROUP;
        for (int64_t j = first; j < k && j < first + GROUP; j++)
            amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax;
        r.scale[i / GROUP] = amax / 448.0f;
        v = x[i] * (1.0f / r.scale[i / GROUP]);
        r.code[i] = ml_f32_to_e4m3(v);
    }
    return r;
}

ck_fp8_row ck_fp8_weight(ml_arena *a, const ml_tensor *w, int64_t member, int64_t row) {
    const int64_t n = w->shape[w->n_dim - 2], k = w->shape[w->n_dim - 1];
    const int64_t panels = (n + ML_LANES - 1) / ML_LANES;
    const unsigned char *panel =
        (const unsigned char *)w->data +
        (size_t)(member * panels + row / ML_LANES) * ml_codes_panel_bytes(w->dtype, k);
    const ck_fp8_row r = new_row(a, k);

    for (int64_t i = 0; i < k; i++) {
        memcpy(&r.scale[i / GROUP],
               panel + (i / GROUP * ML_LANES + row % ML_LANES) * (int64_t)sizeof(float),
               sizeof(float));
        r.code[i] = panel[ml_codes_scale_bytes(w->dtype, k) +
                          (size_t)(i * ML_LANES + row % ML_LANES)];
    }
    return r;
}
