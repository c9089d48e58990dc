/* v16_c.h - vector primitives over sixteen f32 lanes, in plain C.
 *
 * Each CPU kernel is one source (*.inc) written with these primitives and compiled once
 * per level: here with arrays, in x86/v16_avx512.h with one register, x86/v16_avx2.h with
 * two, arm/v16_neon.h with four.  Each primitive is an exact IEEE operation per lane or a
 * fixed tree over lanes, so that all levels compute the same bits.  This file is the
 * reference definition; the others change only how the lanes are held in registers.
 *
 * NaNs compare as a class: a NaN may have a different payload at another level. */
#ifndef ML_BACKEND_CPU_V16_C_H
#define ML_BACKEND_CPU_V16_C_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define V16_C
#define V16_LEVEL c
#define V16_REGS 8   /* v16 values that fit the registers of the level */
#define V16_SCALES 0 /* whether the level has a native v16_scale (v16_math.inc) */

typedef struct v16 {
    float f[16];
} v16;

#define V16_EACH(expr)                                                                     \
    do {                                                                                   \
        for (int i = 0; i < 16; i++)                                                       \
            r.f[i] = (expr);                                                               \
        return r;                                                                          \
    } while (0)

static inline v16 v16_set1(float a) {
    v16 r;
    V16_EACH(a);
}

static inline v16 v16_zero(void) {
    return v16_set1(0.0f);
}

static inline v16 v16_load(const float *p) { /* any alignment */
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}

static inline void v16_store(float *p, v16 a) {
    memcpy(p, a.f, sizeof a.f);
}

/* The first n lanes, 0 <= n <= 16: memory past them is not accessed; missing lanes are
 * +0. */
static inline v16 v16_load_n(const float *p, int64_t n) {
    v16 r = v16_zero();
    memcpy(r.f, p, (size_t)n * sizeof(float));
    return r;
}

static inline void v16_store_n(float *p, v16 a, int64_t n) {
    memcpy(p, a.f, (size_t)n * sizeof(float));
}

/* bf16 is the upper half of an f32: exact. */
static inline v16 v16_load_bf16(const uint16_t *p) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = (uint32_t)p[i] << 16;
        memcpy(&r.f[i], &u, sizeof u);
    }
    return r;
}

/* The first element of each of 16 bf16 pairs; below, the second. */
static inline v16 v16_load_even(const uint16_t *p) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = (uint32_t)p[2 * i] << 16;
        memcpy(&r.f[i], &u, sizeof u);
    }
    return r;
}

static inline v16 v16_load_odd(const uint16_t *p) {
    return v16_load_even(p + 1);
}

/* 16 signed bytes: exact. */
static inline v16 v16_load_int8(const int8_t *p) {
    v16 r;
    V16_EACH((float)p[i]);
}

/* 16 e4m3 codes, times 2^-8: exact.  The code of NaN is read as 480. */
static inline v16 v16_load_e4m3(const uint8_t *p) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = (p[i] & 0x80u) << 24 | (p[i] & 0x7fu) << 20;
        memcpy(&r.f[i], &u, sizeof u);
        r.f[i] *= 0x1p112f;
    }
    return r;
}

/* 16 e5m2 codes: exact.  The codes of infinity and NaN have no defined value. */
static inline v16 v16_load_e5m2(const uint8_t *p) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = (p[i] & 0x80u) << 24 | (p[i] & 0x7fu) << 21;
        memcpy(&r.f[i], &u, sizeof u);
        r.f[i] *= 0x1p112f;
    }
    return r;
}

/* The i-th four bits, from the lowest, of 16 words: indices into `value` [16]. */
static inline v16 v16_load_nibble(const uint32_t *p, int n, const float *value) {
    v16 r;
    V16_EACH(value[p[i] >> (4 * n) & 15]);
}

static inline v16 v16_add(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] + b.f[i]);
}

static inline v16 v16_sub(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] - b.f[i]);
}

static inline v16 v16_mul(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] * b.f[i]);
}

static inline v16 v16_div(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] / b.f[i]);
}

/* a * b + c, rounded once. */
static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    v16 r;
    V16_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
}

/* a > b ? a : b, which is the second operand when either is NaN or both are zeros. */
static inline v16 v16_max(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}

/* a < b ? a : b, with the same rule. */
static inline v16 v16_min(v16 a, v16 b) {
    v16 r;
    V16_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}

/* a > b ? x : y, per lane. */
static inline v16 v16_pick_gt(v16 a, v16 b, v16 x, v16 y) {
    v16 r;
    V16_EACH(a.f[i] > b.f[i] ? x.f[i] : y.f[i]);
}

static inline v16 v16_abs(v16 a) { /* clears the sign bit */
    v16 r;
    V16_EACH(fabsf(a.f[i]));
}

static inline v16 v16_neg(v16 a) { /* flips the sign bit */
    v16 r;
    V16_EACH(-a.f[i]);
}

/* 2^n for an integral n in [-126, 127]. */
static inline v16 v16_pow2(v16 n) {
    v16 r;
    for (int i = 0; i < 16; i++) {
        uint32_t u = (uint32_t)((int32_t)n.f[i] + 127) << 23;
        memcpy(&r.f[i], &u, sizeof u);
    }
    return r;
}

/* The sum of the lanes as a tree: a[j] += a[j + w] for w = 8, 4, 2, 1. */
static inline float v16_fold(v16 a) {
    for (int w = 8; w; w /= 2)
        for (int j = 0; j < w; j++)
            a.f[j] = a.f[j] + a.f[j + w];
    return a.f[0];
}

/* The maximum by the same tree, with v16_max's rule: a[j] > a[j + w] ? a[j] : a[j + w]. */
static inline float v16_fold_max(v16 a) {
    for (int w = 8; w; w /= 2)
        for (int j = 0; j < w; j++)
            a.f[j] = a.f[j] > a.f[j + w] ? a.f[j] : a.f[j + w];
    return a.f[0];
}

/* Lane j of row i becomes lane i of row j. */
static inline void v16_transpose(v16 r[16]) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float t = r[i].f[j];
            r[i].f[j] = r[j].f[i];
            r[j].f[i] = t;
        }
}

#endif
