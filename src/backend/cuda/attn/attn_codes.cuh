/* attn_codes.cuh - KV pages of codes of 8 bits (ML_KV_*), with a scale for each key and value.
 *
 * A page has the codes of 16 keys of each head, or of 16 values padded to c.dv, then the scales
 * of all heads in f32: the codes of a head begin at a cache line.  Codes and scales of a row are
 * those of the CPU (ml_kv_encode).  The number that is read is the f32 product of a code's value and
 * its scale, rounded to the type of activations: attention has the bits of pages of that type with
 * these numbers.
 *
 * Keys whose size is a multiple of 16 have their elements in the order of an mma operand: of 16
 * elements 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.  Then four adjacent codes are those that a
 * lane of an mma step needs. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_CODES_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_CODES_CUH

#include <cuda_fp8.h>

#include "backend/cuda/attn/attn.cuh"

enum { ATTN_UNIT = 16 /* codes per access */ };

/* ---- places ---- */

/* Of a key or a value: its codes, and where its scale is. */
struct attn_coded {
    uint8_t *code;
    float *scale;
};

__device__ static inline attn_coded attn_coded_at(uint8_t *pages, int64_t page, int head,
                                                  int n_kv, int slot, int width) {
    uint8_t *at = pages + page * (n_kv * ML_PAGE * (width + ML_KV_SCALE_BYTES));
    int row = head * ML_PAGE + slot;
    return { at + row * width, (float *)(at + n_kv * ML_PAGE * width) + row };
}

template <class T>
__device__ static inline attn_coded attn_coded_key(const attn_call<T> &c,
                                                   const int32_t *page, int head, int key) {
    return attn_coded_at(c.kcode, page[key / ML_PAGE], head, c.n_kv, key % ML_PAGE, c.d);
}

/* Values that are the first numbers of keys have their codes. */
template <class T>
__device__ static inline attn_coded
attn_coded_value(const attn_call<T> &c, const int32_t *page, int head, int key) {
    if (!c.vcode)
        return attn_coded_key(c, page, head, key);
    return attn_coded_at(c.vcode, page[key / ML_PAGE], head, c.n_kv, key % ML_PAGE, c.dv);
}

/* Whether keys of this size have the order of an mma operand. */
__host__ __device__ static inline bool attn_is_paired(int d) {
    return d % ATTN_UNIT == 0;
}

/* The place of element e of a key in its row of codes. */
__device__ static inline int attn_code_place(int e, bool paired) {
    return paired ? (e & ~15) | (e & 6) << 1 | (e & 8) >> 2 | (e & 1) : e;
}

/* ---- numbers of codes ---- */

/* Two adjacent FP8 codes of a word, of its lower half or of its upper one, as f16: exact. */
template <int FORMAT, int HALF>
__device__ static inline uint32_t attn_code_halves(uint32_t w) {
    uint32_t bits;

    static_assert(FORMAT != ATTN_INT8, "f16 holds FP8 codes");
    if (FORMAT == ATTN_E5M2) /* the upper half of an f16 */
        return __byte_perm(w, 0, HALF ? 0x3424 : 0x1404);
#if __CUDA_ARCH__ >= 890
    /* From half of a register, which the intrinsic shifts first. */
    if (HALF)
        asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, hi;}"
            : "=r"(bits)
            : "r"(w));
    else
        asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo;}"
            : "=r"(bits)
            : "r"(w));
#else
    __half2_raw h =
        __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(HALF ? w >> 16 : w), __NV_E4M3);
    memcpy(&bits, &h, sizeof bits);
#endif
    return bits;
}

/* Two adjacent codes of a word as f32. */
template <int FORMAT, int HALF>
__device__ static inline float2 attn_code_values(uint32_t w) {
    if constexpr (
        FORMAT ==
        ATTN_INT8) { /* as the last bits of 2^23 + 128 + code: conversions are slow */
        uint32_t up = w ^ 0x80808080u;
        uint32_t lo = __byte_perm(up, 0x4b000000u, HALF ? 0x7442 : 0x7440);
        uint32_t hi = __byte_perm(up, 0x4b000000u, HALF ? 0x7443 : 0x7441);
        return make_float2(__uint_as_float(lo) - 8388736.0f,
                           __uint_as_float(hi) - 8388736.0f);
    } else {
        uint32_t bits = attn_code_halves<FORMAT, HALF>(w);
        return __half22float2(*(__half2 *)&bits);
    }
}

__device__ static inline float attn_code_value(uint32_t code, int format) {
    return format == ATTN_INT8   ? attn_code_values<ATTN_INT8, 0>(code).x
           : format == ATTN_E5M2 ? attn_code_values<ATTN_E5M2, 0>(code).x
                                 : attn_code_values<ATTN_E4M3, 0>(code).x;
}

/* Two adjacent codes as a pair of bf16. */
template <int FORMAT, int HALF>
__device__ static inline uint32_t attn_widen2(uint32_t w, float scale) {
    float2 v = attn_code_values<FORMAT, HALF>(w);
    __nv_bfloat162 p = __floats2bfloat162_rn(v.x * scale, v.y * scale);
    return *(uint32_t *)&p;
}

template <int FORMAT>
__device__ static inline void attn_widen_words(uint4 (&out)[2], const uint32_t (&w)[4],
                                               float scale) {
    out[0].x = attn_widen2<FORMAT, 0>(w[0], scale);
    out[0].y = attn_widen2<FORMAT, 1>(w[0], scale);
    out[0].z = attn_widen2<FORMAT, 0>(w[1], scale);
    out[0].w = attn_widen2<FORMAT, 1>(w[1], scale);
    out[1].x = attn_widen2<FORMAT, 0>(w[2], scale);
    out[1].y = attn_widen2<FORMAT, 1>(w[2], scale);
    out[1].z = attn_widen2<FORMAT, 0>(w[3], scale);
    out[1].w = attn_widen2<FORMAT, 1>(w[3], scale);
}

/* 16 codes of a row, with the numbers that are absent as zeros. */
struct attn_unit {
    uint4 code;
    float scale;
};

/* Element e, a multiple of 16, and those after it, of a row of `width` codes, a multiple of 8. */
__device__ static inline attn_unit attn_load_unit(const uint8_t *code, const float *scale,
                                                  int e, int width) {
    attn_unit u = {};

    u.scale = *scale;
    if (width % ATTN_UNIT == 0) {
        u.code = *(const uint4 *)(code + e);
        return u;
    }
    *(uint2 *)&u.code = *(const uint2 *)(code + e);
    if (e + 8 < width)
        *((uint2 *)&u.code + 1) = *(const uint2 *)(code + e + 8);
    return u;
}

__device__ static inline attn_unit attn_load_unit(const attn_coded &row, int e, int width) {
    return attn_load_unit(row.code, row.scale, e, width);
}

/* 16 numbers in order. */
__device__ static inline void attn_widen_unit(uint4 (&out)[2], const attn_unit &u,
                                              bool paired, int format) {
    uint32_t w[4] = { u.code.x, u.code.y, u.code.z, u.code.w };

    if (paired) {
        w[0] = __byte_perm(u.code.x, u.code.y, 0x5410);
        w[1] = __byte_perm(u.code.z, u.code.w, 0x5410);
        w[2] = __byte_perm(u.code.x, u.code.y, 0x7632);
        w[3] = __byte_perm(u.code.z, u.code.w, 0x7632);
    }
    if (format == ATTN_INT8)
        attn_widen_words<ATTN_INT8>(out, w, u.scale);
    else if (format == ATTN_E5M2)
        attn_widen_words<ATTN_E5M2>(out, w, u.scale);
    else
        attn_widen_words<ATTN_E4M3>(out, w, u.scale);
}

/* ---- codes of numbers ---- */

/* The scale of a row whose largest magnitude has these bits, and its inverse: ml_kv_encode.
 * As integers, a NaN and an infinity are above all other magnitudes. */
struct attn_scale {
    float scale, inverse; /* of a row with an infinity or NaN: NaN, and all codes are 0 */
};

__device__ static inline attn_scale attn_scale_of(uint32_t most_bits, int format) {
    float most = __uint_as_float(most_bits);
    attn_scale s;

    if (most_bits >= 0x7f800000u)
        return { __uint_as_float(0x7fc00000u), 0.0f };
    most = most > 1e-10f ? most : 1e-10f;
    s.scale = most / (format == ATTN_E4M3   ? 448.0f
                      : format == ATTN_E5M2 ? 57344.0f
                                            : 127.0f);
    if (format != ATTN_INT8) /* up to a power of two */
        s.scale = __uint_as_float((__float_as_uint(s.scale) + 0x7fffff) & 0x7f800000u);
    s.inverse = 1.0f / s.scale;
    return s;
}

/* The magnitude of a number, as attn_scale_of takes it. */
__device__ static inline uint32_t attn_magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

__device__ static inline uint8_t attn_encode(float x, const attn_scale &s, int format) {
    if (isnan(s.scale))
        return 0;
    if (format == ATTN_INT8)
        return (uint8_t)(int8_t)__float2int_rn(x * s.inverse);
    return (uint8_t)__nv_cvt_float_to_fp8(x * s.inverse, __NV_SATFINITE,
                                          format == ATTN_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

/* Two codes, the first one in the lower byte. */
__device__ static inline uint32_t attn_encode2(float x, float y, const attn_scale &s,
                                               int format) {
    if (isnan(s.scale))
        return 0;
    if (format == ATTN_INT8)
        return (uint32_t)(uint8_t)__float2int_rn(x * s.inverse) |
               (uint32_t)(uint8_t)__float2int_rn(y * s.inverse) << 8;
    return __nv_cvt_float2_to_fp8x2(make_float2(x * s.inverse, y * s.inverse),
                                    __NV_SATFINITE,
                                    format == ATTN_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

/* attn_codes.cu: writes the rows' keys and values to pages of codes. */
template <class T> void ml_attn_write_codes(ml_cuda_stream *s, const attn_call<T> &c);
/* Makes the pages of a call numbers in scratch memory: all, or those that the rows of the batch
 * read, of entries first .. first + at.n_page - 1 of its page table. */
template <class T>
void ml_attn_widen_pages(ml_cuda_stream *s, attn_call<T> &c, const ml_attn_scratch &at,
                         void *scratch);
void ml_attn_widen_batch(ml_cuda_stream *s, attn_call<bf16> &c, const ml_attn_scratch &at,
                         void *scratch, int first);
/* attn_decode_codes.cu: ml_attn_decode of pages of codes. */
bool ml_attn_decode_codes_supports(const attn_call<bf16> &c);
void ml_attn_decode_codes(ml_cuda_stream *s, const attn_call<bf16> &c);

#endif
