/* wgmma.cuh - Hopper's tensor-core instructions: a warpgroup (four warps) multiplies from shared
 * memory, on its own time.
 *
 * Operands in shared memory are made of panels: 64 rows of 64 numbers (128 bytes), 8 KiB, at a
 * multiple of 1024; the 16-byte pieces of row r lie at their number XOR r % 8, which keeps all
 * accesses off the same banks.  Wider rows are panels one behind the other.  A panel is read along
 * its rows (they are summed over) or turned (its columns stay, rows are summed over).
 *
 * A product is m64n64k16.  Warp w of the group has rows 16 w .. of the result, as eight of mma.cuh's
 * tiles side by side: c[j][k] is number k of tile j.  It adds as ml_mma does, to the bit. */
#ifndef ML_BACKEND_CUDA_WGMMA_CUH
#define ML_BACKEND_CUDA_WGMMA_CUH

#include "backend/cuda/mma.cuh"

enum { ML_PANEL = 64 * 64, ML_WARPGROUP = 128 };

/* Where piece e (8 numbers) of a row lies in panels. */
__device__ static inline int ml_panel_at(int row, int e) {
    return e / 8 * ML_PANEL + row * 64 + ((e ^ row) & 7) * 8;
}

/* How the instructions name a panel: its address, 1024 bytes from 8 rows to the next 8, and (in the
 * upper half) that pieces are exchanged. */
#define ML_PANEL_HI "0x40000040"

__device__ static inline uint32_t ml_panel(const bf16 *p) {
    return ml_smem(p) >> 4 | (1024 >> 4) << 16;
}

/* Columns 16 k .. of panels, along rows. */
__device__ static inline uint32_t ml_panel_columns(uint32_t panel, int k) {
    return panel + (uint32_t)(k / 4 * (ML_PANEL * 2 >> 4) + k % 4 * (32 >> 4));
}

/* Rows 16 k .. of panel h, turned. */
__device__ static inline uint32_t ml_panel_rows(uint32_t panel, int h, int k) {
    return panel + (uint32_t)(h * (ML_PANEL * 2 >> 4) + k * (16 * 128 >> 4));
}

/* Registers that were written are seen by the products that follow. */
__device__ static inline void ml_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The same, with left operands among them, which must not be written any later. */
__device__ static inline void ml_wgmma_fence(uint32_t (&a)[4][4]) {
    asm volatile("wgmma.fence.sync.aligned;"
                 : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]),
                   "+r"(a[1][0]), "+r"(a[1][1]), "+r"(a[1][2]), "+r"(a[1][3]),
                   "+r"(a[2][0]), "+r"(a[2][1]), "+r"(a[2][2]), "+r"(a[2][3]),
                   "+r"(a[3][0]), "+r"(a[3][1]), "+r"(a[3][2]), "+r"(a[3][3])
                 :
                 : "memory");
}

/* What was asked for until now is one group. */
__device__ static inline void ml_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* The 32 sums of a thread, as an instruction names them and as operands. */
#define ML_WGMMA_SUMS                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define ML_WGMMA_ROW(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define ML_WGMMA_ROWS(c)                                                                   \
    ML_WGMMA_ROW(c[0]), ML_WGMMA_ROW(c[1]), ML_WGMMA_ROW(c[2]), ML_WGMMA_ROW(c[3]),        \
        ML_WGMMA_ROW(c[4]), ML_WGMMA_ROW(c[5]), ML_WGMMA_ROW(c[6]), ML_WGMMA_ROW(c[7])

/* Until at most N of the latest groups are on their way; c was among the earlier ones. */
template <int N> __device__ static inline void ml_wgmma_wait(float (*c)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;"
                 : ML_WGMMA_ROWS(c)
                 : "n"(N)
                 : "memory");
}

/* What this thread wrote to shared memory, or copied there, is seen by products after the next
 * barrier. */
__device__ static inline void ml_wgmma_publish(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* c = a b', or c += a b'; a and b are 64 x 16, both along rows. */
__device__ static inline void ml_wgmma(float (*c)[4], uint32_t a, uint32_t b, bool add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.b32 add, %34, 0;"
                 "mov.b64 a, {%32, " ML_PANEL_HI "}; mov.b64 b, {%33, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ML_WGMMA_SUMS
                 "a, b, add, 1, 1, 0, 0;}"
                 : ML_WGMMA_ROWS(c)
                 : "r"(a), "r"(b), "r"((int)add));
}

/* c = a b, or c += a b; a 64 x 16 in registers, as ml_mma has it; b 16 x 64, turned. */
__device__ static inline void ml_wgmma_turned(float (*c)[4], const uint32_t (&a)[4],
                                              uint32_t b, bool add) {
    asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.b32 add, %37, 0;"
                 "mov.b64 b, {%36, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ML_WGMMA_SUMS
                 "{%32, %33, %34, %35}, b, add, 1, 1, 1;}"
                 : ML_WGMMA_ROWS(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add));
}

#endif
