/* bulk.cuh - bulk copies to shared memory (cp.async.bulk, sm_90), and the mbarriers
 * that signal their arrival.  On older GPUs the functions are empty: kernels that use
 * them are not launched there.
 *
 * A tensor copy (TMA) brings a box of a matrix, of bf16 in the layout of wgmma.cuh's
 * panels; numbers outside the matrix become zero.  Another one stores a box, without what is
 * outside the matrix. */
#ifndef ML_BACKEND_CUDA_BULK_CUH
#define ML_BACKEND_CUDA_BULK_CUH

#include <cuda.h>

#include "backend/cuda/mma.cuh"

/* An mbarrier in shared memory; a phase ends with `arrivals` and all expected bytes. */
typedef uint64_t ml_barrier;

__device__ static inline void ml_barrier_init(ml_barrier *b, unsigned arrivals = 1) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ml_smem(b)), "r"(arrivals)
                 : "memory");
#endif
}

__device__ static inline void ml_barrier_arrive(ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ml_smem(b)) : "memory");
#endif
}

/* Arrives when all cp.async copies that this thread has started are there. */
__device__ static inline void ml_barrier_arrive_copied(ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ml_smem(b))
                 : "memory");
#endif
}

/* The initializing thread calls it after it initialized all barriers of the block; the
 * other threads wait for that thread. */
__device__ static inline void ml_barrier_init_end(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Arrives, and sets the bytes that copies will bring. */
__device__ static inline void ml_barrier_expect(ml_barrier *b, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ml_smem(b)),
                 "r"(bytes)
                 : "memory");
#endif
}

/* Adds to these bytes without arriving. */
__device__ static inline void ml_barrier_expect_more(ml_barrier *b, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(ml_smem(b)),
        "r"(bytes)
        : "memory");
#endif
}

/* Waits until phase `parity` (0, 1, 0, ..) has completed. */
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

/* One thread calls it.  Both addresses are aligned to 16, bytes is a multiple of 16. */
__device__ static inline void ml_bulk_copy(void *to, const void *from, unsigned bytes,
                                           ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(ml_smem(to)),
                 "l"(from), "r"(bytes), "r"(ml_smem(b))
                 : "memory");
#endif
}

/* One thread calls it: the box of `map` from column x, row y of matrix z on. */
__device__ static inline void ml_tensor_copy(void *to, const CUtensorMap *map, int x, int y,
                                             int z, ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(ml_smem(to)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(ml_smem(b))
        : "memory");
#endif
}

/* The same of bytes: panels (ml_panel_box), from column x and panel y on. */
__device__ static inline void ml_tensor_copy_panels(void *to, const CUtensorMap *map, int x,
                                                    int y, ml_barrier *b) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(ml_smem(to)),
        "l"(map), "r"(x), "r"(0), "r"(y), "r"(ml_smem(b))
        : "memory");
#endif
}

/* ---- from shared memory ---- */

/* One thread calls these, after the writers of the box called ml_wgmma_publish and it waited for them.
 * Stores the box to columns x .., rows y .. of matrix z. */
__device__ static inline void ml_tensor_store(const CUtensorMap *map, int x, int y, int z,
                                              const void *from) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
                 "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(ml_smem(from))
                 : "memory");
#endif
}

/* Adds the box instead, in the L2 cache; f32 flushes subnormal numbers to zeros. */
__device__ static inline void ml_tensor_add(const CUtensorMap *map, int x, int y, int z,
                                            const void *from) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group "
                 "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(ml_smem(from))
                 : "memory");
#endif
}

/* The same of `bytes` adjacent bytes, a multiple of 16, at addresses aligned to 16. */
__device__ static inline void ml_bulk_store(float *to, const float *from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(ml_smem(from)), "r"(bytes)
                 : "memory");
#endif
}

__device__ static inline void ml_bulk_add(float *to, const float *from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
                 "[%0], [%1], %2;" ::"l"(to),
                 "r"(ml_smem(from)), "r"(bytes)
                 : "memory");
#endif
}

/* What the thread has stored until now becomes one group. */
__device__ static inline void ml_tensor_commit(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* Waits until the boxes of all but the latest N groups have been read, and may be written again. */
template <int N> __device__ static inline void ml_tensor_wait_read(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}

/* Waits until all groups are in memory. */
__device__ static inline void ml_tensor_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/* ---- clusters ---- */

/* Of all threads of the cluster's blocks. */
__device__ static inline void ml_cluster_sync(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
#endif
}

/* Arrives at the same barrier of block `rank` of the cluster, without a fence: for warps whose reads are
 * complete, or are those of wgmma that has been waited for. */
__device__ static inline void ml_barrier_arrive_at(ml_barrier *b, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(ml_smem(b)),
                 "r"(rank)
                 : "memory");
#endif
}

/* ml_tensor_copy to the same place in the blocks of `mask`, whose barriers it signals. */
__device__ static inline void ml_tensor_multicast(void *to, const CUtensorMap *map, int x,
                                                  int y, int z, ml_barrier *b,
                                                  uint16_t mask) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(ml_smem(to)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(ml_smem(b)), "h"(mask)
        : "memory");
#endif
}

/* ml_tensor_copy_panels likewise. */
__device__ static inline void ml_tensor_multicast_panels(void *to, const CUtensorMap *map,
                                                         int x, int y, ml_barrier *b,
                                                         uint16_t mask) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(ml_smem(to)),
        "l"(map), "r"(x), "r"(0), "r"(y), "r"(ml_smem(b)), "h"(mask)
        : "memory");
#endif
}

/* ---- tensor maps ---- */

/* Matrices for tensor copies: `count` of rows x cols; strides in numbers.  Those of bf16 arrive in
 * panels, words row after row unless they are swizzled. */
typedef struct ml_tensor_box {
    const void *at;
    int word;      /* bytes of a word, 4 or 8; 0: numbers are bf16 */
    bool swizzled; /* words, too, in the 128-byte swizzle: boxes have rows of 128 bytes */
    int64_t cols, rows, count, row_stride, stride;
    int box_cols, box_rows; /* 64 columns of bf16 are a panel; at most 256 each */
    int box_count;          /* 0: one matrix */
} ml_tensor_box;

/* bulk.cu: fails where the driver has no tensor copies, or the strides do not fit. */
cudaError_t ml_tensor_map(CUtensorMap *map, const ml_tensor_box *b);

/* Rows of bytes, of which a copy brings 128 columns of whole panels of 16 rows in the 128-byte swizzle: of a
 * panel the even rows, then the odd ones. */
typedef struct ml_panel_box {
    const void *at;
    int64_t cols, row_stride, panels;
    int box_panels;
} ml_panel_box;

cudaError_t ml_tensor_map_panels(CUtensorMap *map, const ml_panel_box *b);

#endif
