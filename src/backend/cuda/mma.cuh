/* mma.cuh - the tensor-core instructions that the kernels use: mma, ldmatrix, cp.async.
 *
 * The accumulator of m16n8k16 (16 x 8, f32) over the lanes L0 .. L31 of a warp: c[2 * r]
 * and c[2 * r + 1] are in row lane / 4 + 8 * r, at columns lane % 4 * 2 and the next.
 *
 *     column     0    1    2    3    4    5    6    7
 *     row  0    L0   L0   L1   L1   L2   L2   L3   L3     c[0], c[1] (r = 0)
 *     row  1    L4   L4   L5   L5   L6   L6   L7   L7
 *      ..
 *     row  7   L28  L28  L29  L29  L30  L30  L31  L31
 *     row  8    L0   L0   L1   L1   L2   L2   L3   L3     c[2], c[3] (r = 1)
 *      ..
 *     row 15   L28  L28  L29  L29  L30  L30  L31  L31
 *
 * Four lanes share a row: a reduction over it is two shuffles, XOR 1 and XOR 2.
 *
 * An operand register is a pair of bf16.  A (16 x 16): a[r] has the map above, r = 0 and 1;
 * a[2 + r] the same, 8 columns further.  B (16 x 8): b0 has column lane / 4, rows
 * lane % 4 * 2 and the next; b1 the same, 8 rows further. */
#ifndef ML_BACKEND_CUDA_MMA_CUH
#define ML_BACKEND_CUDA_MMA_CUH

#include "backend/cuda/common.cuh"

/* c += a b; a 16 x 16 (row-major), b 16 x 8 (column-major). */
__device__ static inline void ml_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ static inline uint32_t ml_smem(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ static inline void ml_ldmatrix4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ml_smem(row)));
}

__device__ static inline void ml_ldmatrix4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ml_smem(row)));
}

__device__ static inline void ml_ldmatrix2(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(ml_smem(row)));
}

/* Stores four 8 x 8 matrices, registers as ml_ldmatrix4 loads them, to addresses of shared memory. */
__device__ static inline void ml_stmatrix4(uint32_t row, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
#endif
}

/* Starts a copy of 16 bytes to shared memory; zeros if `there` is false. */
__device__ static inline void ml_copy_async(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ml_smem(to)),
                 "l"(from), "r"(there ? 16 : 0));
}

/* Four bytes. */
__device__ static inline void ml_copy_async4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(ml_smem(to)),
                 "l"(from), "r"(there ? 4 : 0));
}

__device__ static inline void ml_copy_commit(void) {
    asm volatile("cp.async.commit_group;");
}

/* Waits until at most N of the latest copy groups are pending. */
template <int N> __device__ static inline void ml_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

__device__ static inline uint32_t ml_pack2(float lo, float hi) {
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&p;
}

#endif
