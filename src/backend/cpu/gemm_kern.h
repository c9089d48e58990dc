/* gemm_kern.h - the micro-kernel all products and attention are made of. */
#ifndef ML_BACKEND_CPU_GEMM_KERN_H
#define ML_BACKEND_CPU_GEMM_KERN_H

#include <stdbool.h>
#include <stdint.h>

/* One register tile: for rows i < mr, panels p < np, lanes l < 16
 *
 *     c[i*c_is + p*c_ps + l]  (+)=  sum over ascending k of  a[i*a_is + k*a_ks] *
 *                                                           b[k*b_ks + p*b_ps + l]
 *
 * as one FMA chain per output that starts from +0, or from c when add.  All 16 lanes of
 * each panel are read and written, unless `tail` (1..16) cuts the last panel of c (not of b). */
typedef struct ml_gemm_tile {
    float *c;
    const float *a, *b;
    int64_t c_is, c_ps, a_is, a_ks, b_ks, b_ps;
    int64_t k;
    int32_t mr, np, tail;
    bool add;
} ml_gemm_tile;

typedef struct ml_gemm_kern {
    int32_t mr, np; /* largest tile held in registers; smaller ones work too */
    void (*tile)(const ml_gemm_tile *t);
} ml_gemm_kern;

#endif
