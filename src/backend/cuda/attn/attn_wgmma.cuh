/* attn_wgmma.cuh - attention tiles in the shared-memory layout of wgmma.
 *
 * A tile is 64 rows of D numbers: D / 64 panels (wgmma.cuh).  A block is several
 * warpgroups (teams), each with 64 rows of the block's tile; these copy, too, or one more does. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_CUH

#include "backend/cuda/attn/attn_mma.cuh"
#include "backend/cuda/wgmma.cuh"

enum { ATTN_ROWS = 64, ATTN_COPIERS = ML_WARPGROUP };

extern __shared__ __align__(1024) unsigned char attn_smem[];

/* The part of every tile that one of N copying threads has: 16 bytes (a piece) of every `at_once`th
 * row. */
template <int D, int N> struct attn_share {
    static const int at_once = N / (D / 8), n = ATTN_ROWS / at_once;
    int row, e;  /* of its first piece; e in numbers */
    int to;      /* offset of that in the tile; each further piece is at_once rows below */
    bool inside; /* within the head's size */
};

template <int D, int N> __device__ static inline attn_share<D, N> attn_own_share(int d) {
    int thread = (int)threadIdx.x % N;
    attn_share<D, N> s;
    s.row = thread / (D / 8);
    s.e = thread % (D / 8) * 8;
    s.to = ml_panel_at(s.row, s.e / 8);
    s.inside = s.e < d;
    return s;
}

/* Offset of a KV head's query heads in a sequence's first token, at a thread's piece. */
template <int D, int N>
__device__ static inline int64_t attn_rows_base(const attn_share<D, N> &s,
                                                const attn_call<bf16> &c, int first_token,
                                                int head) {
    return ((int64_t)first_token * c.n_head + head * c.group) * c.d + s.e;
}

/* Starts the copies of rows of a sequence from row `first` on; `from` is an array at
 * attn_rows_base.  Rows beyond n_row become zero. */
template <int D, int N>
__device__ static inline void
attn_stage_rows(bf16 *to, const bf16 *from, const attn_share<D, N> &s,
                const attn_call<bf16> &c, int first, int n_row) {
    int token_step = (c.n_head - c.group) * c.d;
#pragma unroll
    for (int i = 0; i < s.n; i++) {
        int row = first + s.row + i * s.at_once;
        ml_copy_async(to + s.to + i * s.at_once * 64,
                      from + (int64_t)attn_token(c, row) * token_step + (int64_t)row * c.d,
                      row < n_row && s.inside);
    }
}

/* KV page ids of a thread's keys in the tile that begins at key `tile`; -1: none. */
template <int D, int N>
__device__ static inline void
attn_stage_pages(int32_t (&id)[attn_share<D, N>::n], const attn_share<D, N> &s,
                 const int32_t *page, int tile, int lo, int hi) {
#pragma unroll
    for (int i = 0; i < s.n; i++) {
        int key = tile + s.row + i * s.at_once;
        id[i] = key >= lo && key <= hi ? page[key / ML_PAGE] : -1;
    }
}

/* Starts the copies of a tile's keys and values; those without a page become zero. */
template <int D, int N>
__device__ static inline void attn_stage_keys(bf16 *keys, bf16 *values,
                                              const attn_share<D, N> &s,
                                              const int32_t (&id)[attn_share<D, N>::n],
                                              const attn_call<bf16> &c, int head) {
    int slot = head * ML_PAGE + s.row % ML_PAGE, per_page = c.n_kv * ML_PAGE;
    const bf16 *k = c.kpage + slot * c.d + s.e, *v = c.vpage + slot * c.dv + s.e;
#pragma unroll
    for (int i = 0; i < s.n; i++) {
        int to = s.to + i * s.at_once * 64, in_page = i * s.at_once % ML_PAGE;
        bool there = id[i] >= 0 && s.inside;
        ml_copy_async(keys + to, k + (int64_t)id[i] * (per_page * c.d) + in_page * c.d,
                      there);
        ml_copy_async(values + to, v + (int64_t)id[i] * (per_page * c.dv) + in_page * c.dv,
                      there);
    }
}

/* A tile of keys and values. */
template <int D> struct attn_stage { bf16 keys[ATTN_ROWS * D], values[ATTN_ROWS * D]; };

/* Waits for all but the N latest copy groups, and makes them visible to wgmma. */
template <int N> __device__ static inline void attn_await_copies(void) {
    ml_copy_wait<N>();
    ml_wgmma_publish();
    __syncthreads();
}

/* ---- products ---- */

/* ptxas moves arithmetic behind a later wait for products, so that nothing overlaps them.
 * A store that never happens (weights and their sums are not negative) prevents that. */
__device__ static inline void attn_finish(float sum) {
    asm volatile(
        "{.reg .pred bad; setp.lt.f32 bad, %0, 0f00000000; @bad st.shared.f32 [%1], %0;}" ::
            "f"(sum),
        "r"(ml_smem(attn_smem))
        : "memory");
}

/* The thread's warpgroup; the shuffle shows the compiler that it is warp-uniform. */
__device__ static inline int attn_team(void) {
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);
}

/* Starts s [64 x 64] = a b', both with D columns. */
template <int D>
__device__ static inline void attn_start_scores(float (&s)[8][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        ml_wgmma(s, ml_panel_columns(a, k), ml_panel_columns(b, k), k != 0);
    ml_wgmma_commit();
}

/* Starts acc [64 x D] = weights [64 x 64] rows [64 x D]; with `add`, adds to acc. */
template <int D>
__device__ static inline void attn_start_sums(float (&acc)[D / 8][4],
                                              const uint32_t (&w)[4][4], uint32_t rows,
                                              bool add) {
    static_assert(D == 64 || D % 128 == 0, "one panel, or pairs of panels");
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (D == 64)
            ml_wgmma_transposed(acc, w[k], ml_panel_rows(rows, 0, k), add || k != 0);
#pragma unroll
        for (int h = 0; h < D / 128; h++)
            ml_wgmma_transposed_128(
                acc + 16 * h, w[k],
                ml_panels_wide(ml_panel_rows(rows, 2 * h, k), ML_PANEL * 2), add || k != 0);
    }
    ml_wgmma_commit();
}

#endif
