/* attn_wgmma.cuh - attention tiles in the shared-memory layout of wgmma.
 *
 * A tile is 64 rows of D numbers: D / 64 panels (wgmma.cuh).  A block is several
 * warpgroups (teams), each with 64 rows of the block's tile; the first two warpgroups
 * issue the copies. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_WGMMA_CUH

#include "backend/cuda/attn/attn_mma.cuh"
#include "backend/cuda/wgmma.cuh"

enum { ATTN_ROWS = 64, ATTN_FETCHERS = 2 * ML_WARPGROUP };

extern __shared__ __align__(1024) unsigned char attn_smem[];

/* A copying thread's part of every tile: 16 bytes (a piece) of every `at_once`th row. */
template <int D> struct attn_share {
    static const int at_once = ATTN_FETCHERS / (D / 8), n = ATTN_ROWS / at_once;
    int row, e;  /* of its first piece; e in numbers */
    int to;      /* offset of that in the tile; each further piece is at_once rows below */
    bool inside; /* within the head's size */
};

template <int D> __device__ static inline attn_share<D> attn_own_share(int d) {
    attn_share<D> s;
    s.row = (int)threadIdx.x / (D / 8);
    s.e = (int)threadIdx.x % (D / 8) * 8;
    s.to = ml_panel_at(s.row, s.e / 8);
    s.inside = s.e < d;
    return s;
}

/* Offset of a KV head's query heads in a sequence's first token, at a thread's piece. */
template <int D>
__device__ static inline int64_t attn_rows_base(const attn_share<D> &s,
                                                const attn_call<bf16> &c, int first_token,
                                                int head) {
    return ((int64_t)first_token * c.n_head + head * c.group) * c.d + s.e;
}

/* Starts the copies of rows of a sequence from row `first` on; `from` is an array at
 * attn_rows_base.  Rows beyond n_row become zero. */
template <int D>
__device__ static inline void
attn_stage_rows(bf16 *to, const bf16 *from, const attn_share<D> &s,
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
template <int D>
__device__ static inline void attn_stage_pages(int32_t (&id)[attn_share<D>::n],
                                               const attn_share<D> &s, const int32_t *page,
                                               int tile, int lo, int hi) {
#pragma unroll
    for (int i = 0; i < s.n; i++) {
        int key = tile + s.row + i * s.at_once;
        id[i] = key >= lo && key <= hi ? page[key / ML_PAGE] : -1;
    }
}

/* Starts the copies of a tile's keys and values; those without a page become zero. */
template <int D>
__device__ static inline void
attn_stage_keys(bf16 *keys, bf16 *values, const attn_share<D> &s,
                const int32_t (&id)[attn_share<D>::n], const attn_call<bf16> &c, int head) {
    int slot = head * ML_PAGE + s.row % ML_PAGE, per_page = c.n_kv * ML_PAGE;
    const bf16 *k = c.kpage + slot * c.d + s.e, *v = c.vpage + slot * c.dv + s.e;
#pragma unroll
    for (int i = 0; i < s.n; i++) {
        int to = s.to + i * s.at_once * 64;
        bool there = id[i] >= 0 && s.inside;
        ml_copy_async(keys + to, k + (int64_t)id[i] * (per_page * c.d), there);
        ml_copy_async(values + to, v + (int64_t)id[i] * (per_page * c.dv), there);
    }
}

/* ---- the pipeline of key tiles ---- */

template <int D> struct attn_stage { bf16 keys[ATTN_ROWS * D], values[ATTN_ROWS * D]; };

template <int D> struct attn_tiles {
    attn_share<D> own;
    const int32_t *page;
    int32_t id[attn_share<D>::n]; /* KV pages of the next tile, loaded ahead */
    int next, lo, hi;             /* its first key; the first and the last key of all */
};

/* The key tiles that `rows` rows of a piece from row0 on attend to. */
template <int D>
__device__ static inline attn_tiles<D>
attn_open_tiles(const attn_share<D> &own, const attn_call<bf16> &c, const ml_piece &p,
                int row0, int rows) {
    int n_row = p.rows * c.group, last = row0 + rows < n_row ? row0 + rows - 1 : n_row - 1;
    attn_tiles<D> t;

    t.own = own;
    t.page = c.page + c.page_start[p.owner];
    t.hi = c.pos[p.first_row + attn_token(c, last)];
    t.lo = attn_first_key(c, c.pos[p.first_row + attn_token(c, row0)]);
    t.next = t.lo / ML_KTILE * ML_KTILE;
    attn_stage_pages<D>(t.id, own, t.page, t.next, t.lo, t.hi);
    return t;
}

template <int D>
__device__ static inline void attn_fetch_tile(attn_stage<D> &to, attn_tiles<D> &t,
                                              const attn_call<bf16> &c, int head) {
    if (threadIdx.x < ATTN_FETCHERS) {
        attn_stage_keys<D>(to.keys, to.values, t.own, t.id, c, head);
        t.next += ML_KTILE;
        attn_stage_pages<D>(t.id, t.own, t.page, t.next, t.lo, t.hi);
    }
    ml_copy_commit();
}

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
