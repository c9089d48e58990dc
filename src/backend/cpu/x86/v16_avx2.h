/* v16_avx2.h - the primitives of v16_c.h with the sixteen lanes in two registers. */
#ifndef ML_BACKEND_CPU_X86_V16_AVX2_H
#define ML_BACKEND_CPU_X86_V16_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define V16_LEVEL avx2
#define V16_REGS 8
#define V16_SCALES 0

typedef struct v16 {
    __m256 lo, hi;
} v16;

static inline v16 v16_of(__m256 lo, __m256 hi) {
    return (v16){ lo, hi };
}

static inline v16 v16_set1(float a) {
    __m256 f = _mm256_set1_ps(a);
    return v16_of(f, f);
}

static inline v16 v16_zero(void) {
    return v16_set1(0.0f);
}

static inline v16 v16_load(const float *p) {
    return v16_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

static inline void v16_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

/* All ones in the lanes first, first + 1, .. that are below n, else zeros. */
static inline __m256i v16_below(int64_t n, int first) {
    __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                    _mm256_set1_epi32(first));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline v16 v16_load_n(const float *p, int64_t n) {
    return v16_of(_mm256_maskload_ps(p, v16_below(n, 0)),
                  _mm256_maskload_ps(p + 8, v16_below(n, 8)));
}

static inline void v16_store_n(float *p, v16 a, int64_t n) {
    _mm256_maskstore_ps(p, v16_below(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, v16_below(n, 8), a.hi);
}

static inline __m256 v16_half_bf16(const uint16_t *p) {
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    return v16_of(v16_half_bf16(p), v16_half_bf16(p + 8));
}

static inline __m256i v16_half_pairs(const uint16_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline v16 v16_load_even(const uint16_t *p) {
    return v16_of(_mm256_castsi256_ps(_mm256_slli_epi32(v16_half_pairs(p), 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(v16_half_pairs(p + 16), 16)));
}

static inline v16 v16_load_odd(const uint16_t *p) {
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return v16_of(_mm256_castsi256_ps(_mm256_and_si256(v16_half_pairs(p), upper)),
                  _mm256_castsi256_ps(_mm256_and_si256(v16_half_pairs(p + 16), upper)));
}

static inline __m256i v16_half_bytes(const void *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline v16 v16_load_int8(const int8_t *p) {
    return v16_of(_mm256_cvtepi32_ps(v16_half_bytes(p)),
                  _mm256_cvtepi32_ps(v16_half_bytes(p + 8)));
}

static inline __m128i v16_half_words(const void *p) {
    return _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
}

/* As f16, whose exponent has one bit more: the sign, a zero, the seven other bits. */
static inline __m256 v16_half_e4m3(const uint8_t *p) {
    __m128i w = _mm_slli_epi16(v16_half_words(p), 7);
    return _mm256_cvtph_ps(_mm_and_si128(w, _mm_set1_epi16((short)0xbf80)));
}

static inline v16 v16_load_e4m3(const uint8_t *p) {
    return v16_of(v16_half_e4m3(p), v16_half_e4m3(p + 8));
}

/* The upper byte of an f16. */
static inline __m256 v16_half_e5m2(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(v16_half_words(p), 8));
}

static inline v16 v16_load_e5m2(const uint8_t *p) {
    return v16_of(v16_half_e5m2(p), v16_half_e5m2(p + 8));
}

/* Two tables of eight; the upper bit of the index selects one. */
static inline __m256 v16_half_nibble(const uint32_t *p, int n, const float *value) {
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    __m256i at = _mm256_srli_epi32(w, 4 * n), top = _mm256_slli_epi32(w, 28 - 4 * n);
    __m256 lower = _mm256_permutevar8x32_ps(_mm256_loadu_ps(value), at);
    __m256 upper = _mm256_permutevar8x32_ps(_mm256_loadu_ps(value + 8), at);
    return _mm256_blendv_ps(lower, upper, _mm256_castsi256_ps(top));
}

static inline v16 v16_load_nibble(const uint32_t *p, int n, const float *value) {
    return v16_of(v16_half_nibble(p, n, value), v16_half_nibble(p + 8, n, value));
}

static inline v16 v16_add(v16 a, v16 b) {
    return v16_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

static inline v16 v16_sub(v16 a, v16 b) {
    return v16_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

static inline v16 v16_mul(v16 a, v16 b) {
    return v16_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

static inline v16 v16_div(v16 a, v16 b) {
    return v16_of(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    return v16_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

/* maxps and minps return the second operand for NaNs and for two zeros, as v16_c.h
 * requires. */
static inline v16 v16_max(v16 a, v16 b) {
    return v16_of(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}

static inline v16 v16_min(v16 a, v16 b) {
    return v16_of(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}

static inline v16 v16_pick_gt(v16 a, v16 b, v16 x, v16 y) {
    __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ);
    __m256 hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ);
    return v16_of(_mm256_blendv_ps(y.lo, x.lo, lo), _mm256_blendv_ps(y.hi, x.hi, hi));
}

static inline v16 v16_abs(v16 a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}

static inline v16 v16_neg(v16 a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of(_mm256_xor_ps(sign, a.lo), _mm256_xor_ps(sign, a.hi));
}

static inline __m256 v16_half_pow2(__m256 n) {
    __m256i e = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}

static inline v16 v16_pow2(v16 n) {
    return v16_of(v16_half_pow2(n.lo), v16_half_pow2(n.hi));
}

static inline float v16_fold(v16 a) {
    __m256 e = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v16_fold_max(v16 a) {
    __m256 e = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Transposes four rows of 4 within each 128-bit half. */
static inline void v16_transpose4(__m256 r[4]) {
    __m256d ab_lo = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    __m256d ab_hi = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    __m256d cd_lo = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    __m256d cd_hi = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));

    r[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_lo, cd_lo));
    r[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_lo, cd_lo));
    r[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_hi, cd_hi));
    r[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_hi, cd_hi));
}

static inline void v16_transpose8(__m256 r[8]) {
    v16_transpose4(r);
    v16_transpose4(r + 4);
    for (int j = 0; j < 4; j++) {
        __m256 a = r[j], b = r[4 + j];
        r[j] = _mm256_permute2f128_ps(a, b, 0x20);
        r[4 + j] = _mm256_permute2f128_ps(a, b, 0x31);
    }
}

/* Four blocks of 8 x 8; the two off the diagonal are swapped. */
static inline void v16_transpose(v16 r[16]) {
    __m256 a[8], b[8], c[8], d[8];

    for (int i = 0; i < 8; i++) {
        a[i] = r[i].lo;
        b[i] = r[i].hi;
        c[i] = r[8 + i].lo;
        d[i] = r[8 + i].hi;
    }
    v16_transpose8(a);
    v16_transpose8(b);
    v16_transpose8(c);
    v16_transpose8(d);
    for (int i = 0; i < 8; i++) {
        r[i] = v16_of(a[i], c[i]);
        r[8 + i] = v16_of(b[i], d[i]);
    }
}

#endif
