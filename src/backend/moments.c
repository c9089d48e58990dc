#include "backend/moments.h"

#include <math.h>

#include "base/philox.h"

#define FP8_MAX 448.0f

enum {
    BLOCK = ML_MOMENT_BLOCK,
    DRAWS = 8,          /* elements that share the words of one Philox counter */
    SMALLEST1 = -100,   /* blocks whose largest magnitude is below 2^SMALLEST are 0 ... */
    SMALLEST2 = -45,    /* ... so that values, and the squares of roots, are normal f32 */
    FIRST_EXPONENT = -6 /* of normal E4M3 */
};

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

size_t ml_moment_bytes(ml_moment_format f, int64_t n) {
    if (f == ML_MOMENT_F32)
        return (size_t)n * sizeof(float);
    if (f == ML_MOMENT_BF16)
        return (size_t)n * sizeof(uint16_t);
    return align64((size_t)n) + (size_t)((n + BLOCK - 1) / BLOCK) * sizeof(int16_t);
}

/* --- E4M3 -------------------------------------------------------------------- */

static float decode(uint8_t code) {
    int e = code >> 3 & 15, m = code & 7;
    float x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return code & 0x80 ? -x : x;
}

/* Of 0 <= x <= 448: rounded down, or up if the draw in [0, 1) reaches the rest. */
static uint8_t encode(float x, float draw) {
    int e = x < ldexpf(1.0f, FIRST_EXPONENT) ? FIRST_EXPONENT : ilogbf(x);
    int q = (int)floorf(ldexpf(x, 3 - e) + draw);
    return (uint8_t)((e + 7) * 8 + q - 8);
}

static int16_t *scales(const ml_moment *m) {
    return (int16_t *)((char *)m->data + align64((size_t)m->n));
}

static void load_block(float *to, const ml_moment *m, int64_t at, int64_t n) {
    const uint8_t *code = (const uint8_t *)m->data + at;
    float scale = ldexpf(1.0f, scales(m)[at / BLOCK]);

    for (int64_t i = 0; i < n; i++) {
        float x = decode(code[i]) * scale;
        to[i] = m->second ? x * x : x;
    }
}

static int16_t scale_for(float most) {
    int k = ilogbf(most) - 8;
    while (ldexpf(FP8_MAX, k) < most)
        k++;
    return (int16_t)k;
}

/* 16 of the 128 bits of a counter. */
static float draw_at(const ml_moment *m, uint64_t i, ml_philox *words) {
    uint64_t number = m->first + i, k = number % DRAWS;

    if (k == 0 || i % BLOCK == 0)
        *words = ml_philox_at(m->step, m->id << 1 | m->second, number / DRAWS);
    return (float)(words->word[k / 2] >> (k % 2 * 16) & 0xffffu) * 0x1p-16f;
}

static void store_block(const ml_moment *m, int64_t at, int64_t n, const float *from) {
    uint8_t *code = (uint8_t *)m->data + at;
    float most = 0, x[BLOCK], unscale;
    ml_philox words = { { 0 } };
    int16_t *scale = &scales(m)[at / BLOCK];

    for (int64_t i = 0; i < n; i++) {
        x[i] = m->second ? sqrtf(from[i]) : fabsf(from[i]);
        most = x[i] > most ? x[i] : most;
    }
    *scale = 0;
    if (most < ldexpf(1.0f, m->second ? SMALLEST2 : SMALLEST1)) {
        memset(code, 0, (size_t)n);
        return;
    }
    *scale = scale_for(most);
    unscale = ldexpf(1.0f, -*scale);
    for (int64_t i = 0; i < n; i++) {
        uint8_t c = encode(x[i] * unscale, draw_at(m, (uint64_t)(at + i), &words));
        if (m->second)
            code[i] = c ? c : x[i] > 0;
        else
            code[i] = (uint8_t)(c | (c && from[i] < 0 ? 0x80 : 0)); /* no -0 */
    }
}

/* --- all formats --------------------------------------------------------------- */

void ml_moment_load(float *to, const ml_moment *m, int64_t at, int64_t n) {
    if (m->format == ML_MOMENT_F32)
        memcpy(to, (const float *)m->data + at, (size_t)n * sizeof *to);
    else if (m->format == ML_MOMENT_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = ml_bf16_to_f32(((const uint16_t *)m->data)[at + i]);
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            load_block(to + i, m, at + i, n - i < BLOCK ? n - i : BLOCK);
}

void ml_moment_store(const ml_moment *m, int64_t at, int64_t n, const float *from) {
    if (m->format == ML_MOMENT_F32)
        memcpy((float *)m->data + at, from, (size_t)n * sizeof *from);
    else if (m->format == ML_MOMENT_BF16)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)m->data)[at + i] = ml_f32_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            store_block(m, at + i, n - i < BLOCK ? n - i : BLOCK, from + i);
}
