/* v16_avx512.h - the primitives of v16_c.h with the sixteen lanes in one register. */
#ifndef ML_BACKEND_CPU_X86_V16_AVX512_H
#define ML_BACKEND_CPU_X86_V16_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V16_LEVEL avx512
#define V16_REGS 32
#define V16_SCALES 1

typedef struct v16 {
    __m512 f;
} v16;

static inline v16 v16_of(__m512 f) {
    return (v16){ f };
}

static inline v16 v16_set1(float a) {
    return v16_of(_mm512_set1_ps(a));
}

static inline v16 v16_zero(void) {
    return v16_of(_mm512_setzero_ps());
}

static inline v16 v16_load(const float *p) {
    return v16_of(_mm512_loadu_ps(p));
}

static inline void v16_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a.f);
}

static inline __mmask16 v16_first(int64_t n) {
    return (__mmask16)((1u << n) - 1);
}

static inline v16 v16_load_n(const float *p, int64_t n) {
    return v16_of(_mm512_maskz_loadu_ps(v16_first(n), p));
}

static inline void v16_store_n(float *p, v16 a, int64_t n) {
    _mm512_mask_storeu_ps(p, v16_first(n), a.f);
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return v16_of(_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)));
}

static inline v16 v16_load_even(const uint16_t *p) {
    return v16_of(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)));
}

static inline v16 v16_load_odd(const uint16_t *p) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return v16_of(_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper)));
}

static inline v16 v16_load_int8(const int8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return v16_of(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)));
}

/* As f16, whose exponent has one bit more: the sign, a zero, the seven other bits. */
static inline v16 v16_load_e4m3(const uint8_t *p) {
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    return v16_of(_mm512_cvtph_ps(
        _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbf80))));
}

/* The upper byte of an f16. */
static inline v16 v16_load_e5m2(const uint8_t *p) {
    __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    return v16_of(_mm512_cvtph_ps(_mm256_slli_epi16(w, 8)));
}

static inline v16 v16_load_nibble(const uint32_t *p, int n, const float *value) {
    __m512i at = _mm512_srli_epi32(_mm512_loadu_si512(p), (unsigned)(4 * n));
    return v16_of(_mm512_permutexvar_ps(at, _mm512_loadu_ps(value)));
}

static inline v16 v16_add(v16 a, v16 b) {
    return v16_of(_mm512_add_ps(a.f, b.f));
}

static inline v16 v16_sub(v16 a, v16 b) {
    return v16_of(_mm512_sub_ps(a.f, b.f));
}

static inline v16 v16_mul(v16 a, v16 b) {
    return v16_of(_mm512_mul_ps(a.f, b.f));
}

static inline v16 v16_div(v16 a, v16 b) {
    return v16_of(_mm512_div_ps(a.f, b.f));
}

static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    return v16_of(_mm512_fmadd_ps(a.f, b.f, c.f));
}

/* maxps and minps return the second operand for NaNs and for two zeros, as v16_c.h
 * requires. */
static inline v16 v16_max(v16 a, v16 b) {
    return v16_of(_mm512_max_ps(a.f, b.f));
}

static inline v16 v16_min(v16 a, v16 b) {
    return v16_of(_mm512_min_ps(a.f, b.f));
}

static inline v16 v16_pick_gt(v16 a, v16 b, v16 x, v16 y) {
    __mmask16 gt = _mm512_cmp_ps_mask(a.f, b.f, _CMP_GT_OQ);
    return v16_of(_mm512_mask_blend_ps(gt, y.f, x.f));
}

static inline v16 v16_abs(v16 a) {
    return v16_of(_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.f));
}

static inline v16 v16_neg(v16 a) {
    return v16_of(_mm512_xor_ps(_mm512_set1_ps(-0.0f), a.f));
}

static inline v16 v16_scale(v16 p, v16 n) {
    return v16_of(_mm512_scalef_ps(p.f, n.f));
}

static inline float v16_fold(v16 a) {
    __m256 e = _mm256_add_ps(_mm512_castps512_ps256(a.f), _mm512_extractf32x8_ps(a.f, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v16_fold_max(v16 a) {
    __m256 e = _mm256_max_ps(_mm512_castps512_ps256(a.f), _mm512_extractf32x8_ps(a.f, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Rows 4g .. 4g+3: transposes 4 x 4 within each 128-bit quarter. */
static inline void v16_transpose4(v16 r[4]) {
    __m512d ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(r[0].f, r[1].f));
    __m512d ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(r[0].f, r[1].f));
    __m512d cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(r[2].f, r[3].f));
    __m512d cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(r[2].f, r[3].f));

    r[0].f = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_lo, cd_lo));
    r[1].f = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_lo, cd_lo));
    r[2].f = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_hi, cd_hi));
    r[3].f = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_hi, cd_hi));
}

/* Quarter q of row 4g + j holds column 4q + j of rows 4g .. 4g+3; the quarters of the
 * four rows j, 4 + j, 8 + j, 12 + j are then transposed as a 4 x 4 matrix of quarters. */
static inline void v16_transpose(v16 r[16]) {
    for (int g = 0; g < 4; g++)
        v16_transpose4(r + 4 * g);
    for (int j = 0; j < 4; j++) {
        __m512 a = r[j].f, b = r[4 + j].f, c = r[8 + j].f, d = r[12 + j].f;
        __m512 ab_lo = _mm512_shuffle_f32x4(a, b, 0x44),
               ab_hi = _mm512_shuffle_f32x4(a, b, 0xee);
        __m512 cd_lo = _mm512_shuffle_f32x4(c, d, 0x44),
               cd_hi = _mm512_shuffle_f32x4(c, d, 0xee);

        r[j].f = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0x88);
        r[4 + j].f = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0xdd);
        r[8 + j].f = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0x88);
        r[12 + j].f = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0xdd);
    }
}

#endif
