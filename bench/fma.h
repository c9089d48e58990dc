/* fma.h - a loop of nothing but FMAs in registers: the speed of the FMA units. */
#ifndef ML_BENCH_FMA_H
#define ML_BENCH_FMA_H

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* FMA_SUMS independent sums: two units with a latency of 4 cycles have 8 FMAs in flight. */
enum { FMA_STEPS = 20000, FMA_SUMS = 12 };

/* Defines fma_NAME(): FMA_STEPS times one FMA for each sum. */
#define FMA_LOOP(name, attribute, vector, set1, fma)                                       \
    attribute static inline float fma_##name(float a) {                                    \
        const vector x = set1(a);                                                          \
        vector sum[FMA_SUMS];                                                              \
        float first;                                                                       \
        for (int i = 0; i < FMA_SUMS; i++)                                                 \
            sum[i] = x;                                                                    \
        for (int k = 0; k < FMA_STEPS; k++) {                                              \
            _Pragma("GCC unroll 16") for (int i = 0; i < FMA_SUMS; i++) sum[i] =           \
                fma(sum[i], x, x);                                                         \
        }                                                                                  \
        for (int i = 1; i < FMA_SUMS; i++)                                                 \
            sum[0] = fma(sum[i], x, sum[0]);                                               \
        memcpy(&first, sum, sizeof first);                                                 \
        return first;                                                                      \
    }

#if defined(__x86_64__)
FMA_LOOP(avx512, __attribute__((target("avx512f"))), __m512, _mm512_set1_ps,
         _mm512_fmadd_ps)
FMA_LOOP(avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_set1_ps, _mm256_fmadd_ps)
#elif defined(__aarch64__)
static inline float32x4_t fma_neon_add(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vfmaq_f32(c, a, b);
}
FMA_LOOP(neon, , float32x4_t, vdupq_n_f32, fma_neon_add)
#endif

/* Runs the loop of a level (backend.h).  Returns the floating-point operations, 0: it has no loop. */
static inline double fma_run(const char *level, volatile float *out) {
    int lanes = 0;

#if defined(__x86_64__)
    if (strcmp(level, "avx512") == 0) {
        lanes = 16;
        *out = fma_avx512(0.5f);
    } else if (strcmp(level, "avx2") == 0) {
        lanes = 8;
        *out = fma_avx2(0.5f);
    }
#elif defined(__aarch64__)
    if (strcmp(level, "neon") == 0) {
        lanes = 4;
        *out = fma_neon(0.5f);
    }
#endif
    (void)out;
    return 2.0 * FMA_STEPS * FMA_SUMS * lanes;
}

#endif
