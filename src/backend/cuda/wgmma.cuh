/* wgmma.cuh - Hopper's asynchronous tensor-core instructions: a warpgroup (four warps)
 * multiplies operands from shared memory.
 *
 * Operands in shared memory are made of panels: 64 rows of 64 numbers (128 bytes), 8 KiB,
 * aligned to 1024, in the 128-byte swizzle: 16-byte piece e of row r is at e XOR r % 8,
 * which avoids bank conflicts.  Wider rows are consecutive panels.  A panel is read
 * K-major (the sum runs along its rows) or transposed (the sum runs down its columns).
 *
 * A product is m64n64k16.  Warp w of the group has rows 16 w .. of the result, as eight
 * adjacent m16n8 accumulators with the map of mma.cuh: c[j][k] is number k of tile j.
 * It has the same bits as a chain of ml_mma. */
#ifndef ML_BACKEND_CUDA_WGMMA_CUH
#define ML_BACKEND_CUDA_WGMMA_CUH

#include "backend/cuda/mma.cuh"

enum { ML_PANEL = 64 * 64, ML_WARPGROUP = 128 };

/* Offset of piece e (8 numbers) of a row in panels. */
__device__ static inline int ml_panel_at(int row, int e) {
    return e / 8 * ML_PANEL + row * 64 + ((e ^ row) & 7) * 8;
}

/* The matrix descriptor of a panel: its address, and the stride of 1024 bytes from 8
 * rows to the next 8; the upper half also selects the 128-byte swizzle. */
#define ML_PANEL_HI "0x40000040"

__device__ static inline uint32_t ml_panel(const bf16 *p) {
    return ml_smem(p) >> 4 | (1024 >> 4) << 16;
}

/* Columns 16 k .. of panels, K-major. */
__device__ static inline uint32_t ml_panel_columns(uint32_t panel, int k) {
    return panel + (uint32_t)(k / 4 * (ML_PANEL * 2 >> 4) + k % 4 * (32 >> 4));
}

/* Rows 16 k .. of panel h, transposed. */
__device__ static inline uint32_t ml_panel_rows(uint32_t panel, int h, int k) {
    return panel + (uint32_t)(h * (ML_PANEL * 2 >> 4) + k * (16 * 128 >> 4));
}

/* Orders register writes before the products that follow. */
__device__ static inline void ml_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The same for A fragments: keeps the compiler from writing them later. */
__device__ static inline void ml_wgmma_fence(uint32_t (&a)[4][4]) {
    asm volatile("wgmma.fence.sync.aligned;"
                 : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]),
                   "+r"(a[1][0]), "+r"(a[1][1]), "+r"(a[1][2]), "+r"(a[1][3]),
                   "+r"(a[2][0]), "+r"(a[2][1]), "+r"(a[2][2]), "+r"(a[2][3]),
                   "+r"(a[3][0]), "+r"(a[3][1]), "+r"(a[3][2]), "+r"(a[3][3])
                 :
                 : "memory");
}

/* The products started until now become one group. */
__device__ static inline void ml_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* The 32 accumulators of a thread, in the instruction's text and as asm operands. */
#define ML_WGMMA_SUMS                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define ML_WGMMA_ROW(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define ML_WGMMA_ROWS(c)                                                                   \
    ML_WGMMA_ROW(c[0]), ML_WGMMA_ROW(c[1]), ML_WGMMA_ROW(c[2]), ML_WGMMA_ROW(c[3]),        \
        ML_WGMMA_ROW(c[4]), ML_WGMMA_ROW(c[5]), ML_WGMMA_ROW(c[6]), ML_WGMMA_ROW(c[7])

/* Waits until at most N of the latest groups are pending; c belongs to an earlier one. */
template <int N> __device__ static inline void ml_wgmma_wait(float (*c)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;"
                 : ML_WGMMA_ROWS(c)
                 : "n"(N)
                 : "memory");
}

/* Makes this thread's writes and copies to shared memory visible to the products, and to the tensor
 * copies, after the next barrier. */
__device__ static inline void ml_wgmma_publish(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* c = a b', or c += a b'; a and b are 64 x 16 in shared memory; of a transposed operand 16 rows of
 * a panel. */
template <bool A_TRANSPOSED = false, bool B_TRANSPOSED = false>
__device__ static inline void ml_wgmma(float (*c)[4], uint32_t a, uint32_t b, bool add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.b32 add, %34, 0;"
                 "mov.b64 a, {%32, " ML_PANEL_HI "}; mov.b64 b, {%33, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ML_WGMMA_SUMS
                 "a, b, add, 1, 1, %35, %36;}"
                 : ML_WGMMA_ROWS(c)
                 : "r"(a), "r"(b), "r"((int)add), "n"((int)A_TRANSPOSED),
                   "n"((int)B_TRANSPOSED));
}

/* c = a b, or c += a b; a 64 x 16 in registers (A fragments); b 16 x 64, transposed. */
__device__ static inline void ml_wgmma_transposed(float (*c)[4], const uint32_t (&a)[4],
                                                  uint32_t b, bool add) {
    asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.b32 add, %37, 0;"
                 "mov.b64 b, {%36, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ML_WGMMA_SUMS
                 "{%32, %33, %34, %35}, b, add, 1, 1, 1;}"
                 : ML_WGMMA_ROWS(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add));
}

/* ---- m64n128k16: sixteen m16n8 accumulators, operands in shared memory ---- */

/* Of the descriptor of a panel, for transposed operands of several panels side by side,
 * `bytes` from one to the next. */
__device__ static inline uint32_t ml_panels_wide(uint32_t panel, int bytes) {
    return panel + ((uint32_t)(bytes - 1024) >> 4 << 16);
}

#define ML_WGMMA_SUMS_128                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define ML_WGMMA_ROWS_128(c) ML_WGMMA_ROWS(c), ML_WGMMA_ROWS((c + 8))

/* c += a b'; a is 64 x 16, b 128 x 16; of a transposed operand 16 rows of panels. */
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static inline void ml_wgmma_128(float (*c)[4], uint32_t a, uint32_t b) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.eq.b32 add, 0, 0;"
                 "mov.b64 a, {%64, " ML_PANEL_HI "}; mov.b64 b, {%65, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ML_WGMMA_SUMS_128
                 "a, b, add, 1, 1, %66, %67;}"
                 : ML_WGMMA_ROWS_128(c)
                 : "r"(a), "r"(b), "n"((int)A_TRANSPOSED), "n"((int)B_TRANSPOSED));
}

/* c = a b, or c += a b; a 64 x 16 in registers (A fragments); b 16 x 128, transposed: two
 * panels side by side, as many bytes apart as b says. */
__device__ static inline void ml_wgmma_transposed_128(float (*c)[4], const uint32_t (&a)[4],
                                                      uint32_t b, bool add) {
    asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.b32 add, %69, 0;"
                 "mov.b64 b, {%68, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ML_WGMMA_SUMS_128
                 "{%64, %65, %66, %67}, b, add, 1, 1, 1;}"
                 : ML_WGMMA_ROWS_128(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add));
}

template <int N> __device__ static inline void ml_wgmma_wait_128(float (*c)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;"
                 : ML_WGMMA_ROWS_128(c)
                 : "n"(N)
                 : "memory");
}

/* ---- m64n256k16: the same with 32 accumulators ---- */

#define ML_WGMMA_SUMS_256                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "                        \
    "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "               \
    "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "               \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "               \
    "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, "               \
    "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "               \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "               \
    "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127}, "
#define ML_WGMMA_ROWS_256(c) ML_WGMMA_ROWS_128(c), ML_WGMMA_ROWS_128((c + 16))

/* c += a b'; a is 64 x 16, b 256 x 16; of a transposed operand 16 rows of panels. */
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static inline void ml_wgmma_256(float (*c)[4], uint32_t a, uint32_t b) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.eq.b32 add, 0, 0;"
                 "mov.b64 a, {%128, " ML_PANEL_HI "}; mov.b64 b, {%129, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " ML_WGMMA_SUMS_256
                 "a, b, add, 1, 1, %130, %131;}"
                 : ML_WGMMA_ROWS_256(c)
                 : "r"(a), "r"(b), "n"((int)A_TRANSPOSED), "n"((int)B_TRANSPOSED));
}

template <int N> __device__ static inline void ml_wgmma_wait_256(float (*c)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;"
                 : ML_WGMMA_ROWS_256(c)
                 : "n"(N)
                 : "memory");
}

#endif
