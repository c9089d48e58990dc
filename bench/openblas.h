/* openblas.h - OpenBLAS as a fair peer.
 *
 * An OpenBLAS older than the processor may not know it and fall back to kernels of twenty
 * years ago, and its threads look for work long after theirs is done.  The only way to tell
 * it is variables it reads before main. */
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

/* Tells OpenBLAS to use kernels that this processor has, if it chose lesser ones. */
static inline void openblas_name_core(void) {
#if defined(__x86_64__)
    static const char *const with_avx512[] = { "SkylakeX", "Cooperlake", "SapphireRapids",
                                               NULL };
    static const char *const with_avx2[] = { "Haswell", "Zen", NULL };
    const bool avx512 = __builtin_cpu_supports("avx512f");

    if (__builtin_cpu_supports("avx2") &&
        !openblas_core_is_one_of(avx512 ? with_avx512 : with_avx2))
        setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 0);
#endif
}

/* Starts the program again with what OpenBLAS reads before main: its kernels, and that threads
 * without work sleep after 2^22 cycles, not long after our turn has begun. */
static inline void openblas_use_best_core(char **argv) {
    if (getenv("OPENBLAS_THREAD_TIMEOUT"))
        return;
    setenv("OPENBLAS_THREAD_TIMEOUT", "22", 1);
    openblas_name_core();
    execv("/proc/self/exe", argv);
}

#endif
