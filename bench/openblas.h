/* openblas.h - OpenBLAS as a fair peer.
 *
 * An OpenBLAS older than the processor may not know it and fall back to kernels of twenty
 * years ago.  The only way to tell it is a variable it reads before main. */
#ifndef ML_BENCH_OPENBLAS_H
#define ML_BENCH_OPENBLAS_H

#include <cblas.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline bool openblas_core_is_one_of(const char *const *names) {
    for (; *names; names++)
        if (strcmp(openblas_get_corename(), *names) == 0)
            return true;
    return false;
}

/* Starts the program anew when OpenBLAS chose kernels below what the processor has. */
static inline void openblas_use_best_core(char **argv) {
#if defined(__x86_64__)
    static const char *const with_avx512[] = { "SkylakeX", "Cooperlake", "SapphireRapids",
                                               NULL };
    static const char *const with_avx2[] = { "Haswell", "Zen", NULL };
    const bool avx512 = __builtin_cpu_supports("avx512f");

    if (getenv("OPENBLAS_CORETYPE") || !__builtin_cpu_supports("avx2") ||
        openblas_core_is_one_of(avx512 ? with_avx512 : with_avx2))
        return;
    setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 1);
    execv("/proc/self/exe", argv);
#else
    (void)argv;
#endif
}

#endif
