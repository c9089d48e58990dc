/* v16_neon.h - the primitives of v16_c.h with the sixteen lanes in four registers. */
#ifndef ML_BACKEND_CPU_ARM_V16_NEON_H
#define ML_BACKEND_CPU_ARM_V16_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#define V16_LEVEL neon
#define V16_REGS 8
#define V16_SCALES 0
#define V16_GEMM_GROUP

typedef struct v16 {
    float32x4_t a, b, c, d;
} v16;

static inline v16 v16_of(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    return (v16){ a, b, c, d };
}

static inline v16 v16_set1(float a) {
    float32x4_t f = vdupq_n_f32(a);
    return v16_of(f, f, f, f);
}

static inline v16 v16_zero(void) {
    return v16_set1(0.0f);
}

static inline v16 v16_load(const float *p) {
    return v16_of(vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12));
}

static inline void v16_store(float *p, v16 a) {
    vst1q_f32(p, a.a);
    vst1q_f32(p + 4, a.b);
    vst1q_f32(p + 8, a.c);
    vst1q_f32(p + 12, a.d);
}

/* The first n lanes of four; n may be negative or above 4. */
static inline float32x4_t v16_quarter_load_n(const float *p, int64_t n) {
    float32x4_t q = vdupq_n_f32(0.0f);

    if (n >= 4)
        return vld1q_f32(p);
    if (n > 0)
        q = vld1q_lane_f32(p, q, 0);
    if (n > 1)
        q = vld1q_lane_f32(p + 1, q, 1);
    if (n > 2)
        q = vld1q_lane_f32(p + 2, q, 2);
    return q;
}

static inline void v16_quarter_store_n(float *p, float32x4_t q, int64_t n) {
    if (n >= 4) {
        vst1q_f32(p, q);
        return;
    }
    if (n > 0)
        vst1q_lane_f32(p, q, 0);
    if (n > 1)
        vst1q_lane_f32(p + 1, q, 1);
    if (n > 2)
        vst1q_lane_f32(p + 2, q, 2);
}

static inline v16 v16_load_n(const float *p, int64_t n) {
    return v16_of(v16_quarter_load_n(p, n), v16_quarter_load_n(p + 4, n - 4),
                  v16_quarter_load_n(p + 8, n - 8), v16_quarter_load_n(p + 12, n - 12));
}

static inline void v16_store_n(float *p, v16 a, int64_t n) {
    v16_quarter_store_n(p, a.a, n);
    v16_quarter_store_n(p + 4, a.b, n - 4);
    v16_quarter_store_n(p + 8, a.c, n - 8);
    v16_quarter_store_n(p + 12, a.d, n - 12);
}

static inline float32x4_t v16_quarter_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    return v16_of(v16_quarter_bf16(p), v16_quarter_bf16(p + 4), v16_quarter_bf16(p + 8),
                  v16_quarter_bf16(p + 12));
}

static inline float32x4_t v16_quarter_even(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(p)), 16));
}

static inline v16 v16_load_even(const uint16_t *p) {
    return v16_of(v16_quarter_even(p), v16_quarter_even(p + 8), v16_quarter_even(p + 16),
                  v16_quarter_even(p + 24));
}

static inline float32x4_t v16_quarter_odd(const uint16_t *p) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(p)), upper));
}

static inline v16 v16_load_odd(const uint16_t *p) {
    return v16_of(v16_quarter_odd(p), v16_quarter_odd(p + 8), v16_quarter_odd(p + 16),
                  v16_quarter_odd(p + 24));
}

static inline float32x4_t v16_quarter_int16(int16x4_t h) {
    return vcvtq_f32_s32(vmovl_s16(h));
}

static inline v16 v16_load_int8(const int8_t *p) {
    int8x16_t b = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    return v16_of(v16_quarter_int16(vget_low_s16(lo)), v16_quarter_int16(vget_high_s16(lo)),
                  v16_quarter_int16(vget_low_s16(hi)),
                  v16_quarter_int16(vget_high_s16(hi)));
}

/* As f16, whose exponent has one bit more: the sign, a zero, the seven other bits. */
static inline float32x4_t v16_quarter_e4m3(int16x4_t h) {
    uint16x4_t u =
        vand_u16(vshl_n_u16(vreinterpret_u16_s16(h), 7), vdup_n_u16((uint16_t)0xbf80));
    return vcvt_f32_f16(vreinterpret_f16_u16(u));
}

static inline v16 v16_load_e4m3(const uint8_t *p) {
    int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(p));
    int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    return v16_of(v16_quarter_e4m3(vget_low_s16(lo)), v16_quarter_e4m3(vget_high_s16(lo)),
                  v16_quarter_e4m3(vget_low_s16(hi)), v16_quarter_e4m3(vget_high_s16(hi)));
}

/* The upper byte of an f16. */
static inline float32x4_t v16_quarter_e5m2(uint16x4_t h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(h, 8)));
}

static inline v16 v16_load_e5m2(const uint8_t *p) {
    uint8x16_t b = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_u8(vget_high_u8(b));
    return v16_of(v16_quarter_e5m2(vget_low_u16(lo)), v16_quarter_e5m2(vget_high_u16(lo)),
                  v16_quarter_e5m2(vget_low_u16(hi)), v16_quarter_e5m2(vget_high_u16(hi)));
}

/* The four bytes of entry i of a table of 64 bytes are at 4 i. */
static inline float32x4_t v16_quarter_nibble(const uint32_t *p, int n, uint8x16x4_t table) {
    uint32x4_t i = vandq_u32(vshlq_u32(vld1q_u32(p), vdupq_n_s32(-4 * n)), vdupq_n_u32(15));
    uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100u), i, 0x04040404u);
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(at)));
}

static inline v16 v16_load_nibble(const uint32_t *p, int n, const float *value) {
    const uint8_t *b = (const uint8_t *)value;
    uint8x16x4_t t = { { vld1q_u8(b), vld1q_u8(b + 16), vld1q_u8(b + 32),
                         vld1q_u8(b + 48) } };
    return v16_of(v16_quarter_nibble(p, n, t), v16_quarter_nibble(p + 4, n, t),
                  v16_quarter_nibble(p + 8, n, t), v16_quarter_nibble(p + 12, n, t));
}

static inline v16 v16_add(v16 a, v16 b) {
    return v16_of(vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b), vaddq_f32(a.c, b.c),
                  vaddq_f32(a.d, b.d));
}

static inline v16 v16_sub(v16 a, v16 b) {
    return v16_of(vsubq_f32(a.a, b.a), vsubq_f32(a.b, b.b), vsubq_f32(a.c, b.c),
                  vsubq_f32(a.d, b.d));
}

static inline v16 v16_mul(v16 a, v16 b) {
    return v16_of(vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b), vmulq_f32(a.c, b.c),
                  vmulq_f32(a.d, b.d));
}

static inline v16 v16_div(v16 a, v16 b) {
    return v16_of(vdivq_f32(a.a, b.a), vdivq_f32(a.b, b.b), vdivq_f32(a.c, b.c),
                  vdivq_f32(a.d, b.d));
}

static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    return v16_of(vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b),
                  vfmaq_f32(c.c, a.c, b.c), vfmaq_f32(c.d, a.d, b.d));
}

/* vmaxq and vminq treat NaN and zeros differently: compare and select instead. */
static inline v16 v16_pick_gt(v16 a, v16 b, v16 x, v16 y) {
    return v16_of(
        vbslq_f32(vcgtq_f32(a.a, b.a), x.a, y.a), vbslq_f32(vcgtq_f32(a.b, b.b), x.b, y.b),
        vbslq_f32(vcgtq_f32(a.c, b.c), x.c, y.c), vbslq_f32(vcgtq_f32(a.d, b.d), x.d, y.d));
}

static inline v16 v16_max(v16 a, v16 b) {
    return v16_pick_gt(a, b, a, b);
}

static inline v16 v16_min(v16 a, v16 b) {
    return v16_pick_gt(b, a, a, b);
}

static inline v16 v16_abs(v16 a) {
    return v16_of(vabsq_f32(a.a), vabsq_f32(a.b), vabsq_f32(a.c), vabsq_f32(a.d));
}

static inline v16 v16_neg(v16 a) {
    return v16_of(vnegq_f32(a.a), vnegq_f32(a.b), vnegq_f32(a.c), vnegq_f32(a.d));
}

static inline float32x4_t v16_quarter_pow2(float32x4_t n) {
    int32x4_t e = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
}

static inline v16 v16_pow2(v16 n) {
    return v16_of(v16_quarter_pow2(n.a), v16_quarter_pow2(n.b), v16_quarter_pow2(n.c),
                  v16_quarter_pow2(n.d));
}

static inline float v16_fold(v16 a) {
    float32x4_t q = vaddq_f32(vaddq_f32(a.a, a.c), vaddq_f32(a.b, a.d));
    float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

static inline float32x4_t v16_quarter_max(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline float v16_fold_max(v16 a) {
    float32x4_t q = v16_quarter_max(v16_quarter_max(a.a, a.c), v16_quarter_max(a.b, a.d));
    float32x2_t lo = vget_low_f32(q), hi = vget_high_f32(q);
    float32x2_t h = vbsl_f32(vcgt_f32(lo, hi), lo, hi);
    float x = vget_lane_f32(h, 0), y = vget_lane_f32(h, 1);
    return x > y ? x : y;
}

/* Lane j of row i becomes lane i of row j, for four rows of four. */
static inline void v16_transpose4(float32x4_t *r0, float32x4_t *r1, float32x4_t *r2,
                                  float32x4_t *r3) {
    float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(*r0, *r1));
    float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(*r0, *r1));
    float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(*r2, *r3));
    float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(*r2, *r3));

    *r0 = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
    *r1 = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
    *r2 = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
    *r3 = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
}

/* Sixteen blocks of 4 x 4: each is transposed, then blocks off the diagonal are swapped. */
static inline void v16_transpose(v16 r[16]) {
    for (int i = 0; i < 16; i += 4) {
        v16_transpose4(&r[i].a, &r[i + 1].a, &r[i + 2].a, &r[i + 3].a);
        v16_transpose4(&r[i].b, &r[i + 1].b, &r[i + 2].b, &r[i + 3].b);
        v16_transpose4(&r[i].c, &r[i + 1].c, &r[i + 2].c, &r[i + 3].c);
        v16_transpose4(&r[i].d, &r[i + 1].d, &r[i + 2].d, &r[i + 3].d);
    }
    for (int i = 0; i < 4; i++) {
        v16 p = r[i], q = r[4 + i], s = r[8 + i], t = r[12 + i];
        r[i] = v16_of(p.a, q.a, s.a, t.a);
        r[4 + i] = v16_of(p.b, q.b, s.b, t.b);
        r[8 + i] = v16_of(p.c, q.c, s.c, t.c);
        r[12 + i] = v16_of(p.d, q.d, s.d, t.d);
    }
}

#endif
