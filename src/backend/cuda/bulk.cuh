/* bulk.cuh - copies to shared memory that one thread asks for (sm_90), and the barriers that tell
 * of their arrival.  Elsewhere they are empty: kernels made of them are not launched there. */
#ifndef ML_BACKEND_CUDA_BULK_CUH
#define ML_BACKEND_CUDA_BULK_CUH

#include "backend/cuda/mma.cuh"

/* A barrier in shared memory; each of its phases ends with one arrival and all bytes expected. */
typedef uint64_t ml_barrier;

__device__ static inline void ml_barrier_init(ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ml_smem(b)) : "memory");
#endif
}

/* After all barriers of a block were initialised, by who did it; the others wait for it. */
__device__ static inline void ml_barrier_init_end(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* The arrival, and the bytes that copies will bring. */
__device__ static inline void ml_barrier_expect(ml_barrier *b, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ml_smem(b)),
                 "r"(bytes)
                 : "memory");
#endif
}

/* Until phase `parity` (0, 1, 0, ..) is over. */
__device__ static inline void ml_barrier_wait(ml_barrier *b, unsigned parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN_%=;\n"
                 "}" ::"r"(ml_smem(b)),
                 "r"(parity)
                 : "memory");
#endif
}

/* Both ends aligned to 16, bytes a multiple of 16. */
__device__ static inline void ml_bulk_copy(void *to, const void *from, unsigned bytes,
                                           ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(ml_smem(to)),
                 "l"(from), "r"(bytes), "r"(ml_smem(b))
                 : "memory");
#endif
}

#endif
