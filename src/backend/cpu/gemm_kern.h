/* gemm_kern.h - the micro-kernel (BLIS terms) of all GEMMs and of attention, and the
 * packing functions that bring operands into its order. */
#ifndef ML_BACKEND_CPU_GEMM_KERN_H
#define ML_BACKEND_CPU_GEMM_KERN_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/tensor.h"

/* A panel of a quantized weight (tensor/codes.h), and those that follow it. */
typedef struct ml_gemm_codes {
    const unsigned char *scale, *code;
    int64_t panel; /* bytes */
    ml_dtype dtype;
} ml_gemm_codes;

/* n cache lines, `stride` bytes apart. */
typedef struct ml_gemm_lines {
    const char *at;
    int64_t n, stride;
} ml_gemm_lines;

/* One register tile: for rows i < mr, panels p < np, lanes l < 16
 *
 *     c[i*c_is + p*c_ps + l]  (+)=  sum over ascending k of  a[i*a_is + k*a_ks] *
 *                                                           b[k*b_ks + p*b_ps + l]
 *
 * as one FMA chain per output that starts from +0, or from c when add; `onto`: from +0, and is
 * added to c; `onto_zero`: to +0 instead, which only makes -0 a +0.  With run > 0, b
 * consists of runs of that depth (k is a multiple of it), each b_rs elements after the
 * previous one.  With a bias [np*16], bias[16*p + l] is added last.  All 16 lanes of each
 * panel are read and written, unless `tail` (1..15) cuts the last panel of c and bias
 * (not of b).  b_bf16, when not NULL, replaces b: pairs (tensor.h), an even k, b_ks 16.
 * b_codes, too: inputs b_k and following, b_k a multiple of 8; more than one row are packed,
 * with a_ks 16, a single one has a_ks 1.
 * `next`, when not NULL, is the memory to be read after b, of b's type and order; the
 * kernel prefetches it when a is not packed, which leaves time for that; with next_once, a single panel
 * for each group of panels.  With `after`, b comes from
 * memory, and this is read after its last panel: a kernel may prefetch both.  `ahead` are n_ahead
 * lists of cache lines of later tiles, which it prefetches into the L2 cache.
 *
 * Any np is allowed; panels are processed in groups that fit the registers.  The fastest
 * a is in the order of pack_rows: a_is 1, a_ks its lanes (16 for more than mr rows). */
typedef struct ml_gemm_tile {
    float *c;
    const float *a, *b;
    const uint16_t *b_bf16;
    const ml_gemm_codes *b_codes;
    const void *next, *after;
    const ml_gemm_lines *ahead;
    const float *bias;
    int64_t c_is, c_ps, a_is, a_ks, b_ks, b_ps;
    int64_t k, run, b_rs, b_k;
    int32_t mr, np, tail, n_ahead;
    bool add, onto, onto_zero, next_once;
} ml_gemm_tile;

typedef struct ml_gemm_kern {
    int32_t mr, np; /* the largest tile held in registers */
    int32_t lanes;  /* of packed tiles of up to mr rows: a_ks, 8 or 16 */
    int32_t tall;   /* rows of the tallest tile, which is one panel wide */
    bool tall_f32;  /* f32 weights of few rows are faster with it and packed rows, too */
    void (*tile)(const ml_gemm_tile *t);

    /* dst[j*lanes + i] = src[i*ld + j] for i < n, j < k; lanes n and above are +0.  n <= lanes, which
     * are 16 or the kernel's. */
    void (*pack_rows)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k,
                      int lanes);
    /* dst[j*lanes + i] = src[j*ld + i], with the same limits and padding. */
    void (*pack_columns)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k,
                         int lanes);
    /* bf16 to f32: dst[i] = src[i] for i < 16*n. */
    void (*widen)(float *dst, const uint16_t *src, int64_t n);
    /* The same for pairs (tensor.h); n is even. */
    void (*widen_pairs)(float *dst, const uint16_t *src, int64_t n);
    /* Dequantizes: dst[i*16 + l] = input k + i of output l, for i < n rounded up to a
     * multiple of 8.  k is a multiple of 8. */
    void (*decode)(float *dst, const ml_gemm_codes *c, int64_t k, int64_t n);
} ml_gemm_kern;

#endif
