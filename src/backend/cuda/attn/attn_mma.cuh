/* attn_mma.cuh - attention tiles in shared memory, and their mma fragments. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_MMA_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_MMA_CUH

#include "backend/cuda/attn/attn.cuh"
#include "backend/cuda/mma.cuh"

enum { ATTN_THREADS = 128, ATTN_WARPS = ATTN_THREADS / 32 };

/* Rows of D numbers, padded so that ldmatrix has no bank conflicts. */
template <int D> struct attn_tile {
    static const int ld = D + 8;
    static const int key_tile = ML_KTILE * ld; /* elements of 64 rows */
};

/* Pieces of `per` rows, with `group` rows per token; a piece's owner is a sequence. */
__device__ static inline ml_piece attn_find_piece(const int32_t *seq_start, int n_seq,
                                                  int n_token, int group, int per, int at) {
    if (n_token == n_seq && group <= per) { /* decode: one piece per sequence */
        ml_piece p = { at, at < n_seq ? 0 : -1, at, 1 };
        return p;
    }
    return ml_find_piece(seq_start, n_seq, group, per, at);
}

/* Upper bound on the number of pieces. */
static inline unsigned attn_most_pieces(int n_token, int n_seq, int group, int per) {
    return (unsigned)(((int64_t)n_token * group + per - 1) / per + n_seq);
}

enum { ATTN_TILE_PAGES = ML_KTILE / ML_PAGE };

/* KV page ids of the tile that begins at key `tile`, where they have keys lo .. hi.
 * Loaded one tile ahead, so that the copies do not wait for the page table. */
__device__ static inline void attn_tile_pages(int32_t (&id)[ATTN_TILE_PAGES],
                                              const int32_t *page, int tile, int lo,
                                              int hi) {
#pragma unroll
    for (int i = 0; i < ATTN_TILE_PAGES; i++) {
        int first = tile + i * ML_PAGE;
        id[i] = first <= hi && first + ML_PAGE > lo ? page[first / ML_PAGE] : 0;
    }
}

/* Starts the copies (cp.async) of keys or values lo .. hi of a tile; others become zero. */
template <int D, bool VALUES>
__device__ static inline void attn_fetch_keys(bf16 *to, const attn_call<bf16> &c,
                                              const int32_t (&id)[ATTN_TILE_PAGES],
                                              int head, int tile, int lo, int hi) {
    const int per_row = D / 8, at_once = ATTN_THREADS / per_row;
    int row = (int)threadIdx.x / per_row, e = (int)threadIdx.x % per_row * 8;
    int width = VALUES ? c.dv : c.d;
    const bf16 *pages = VALUES ? c.vpage : c.kpage;
    const bf16 *from[ATTN_TILE_PAGES];

#pragma unroll
    for (int i = 0; i < ATTN_TILE_PAGES; i++)
        from[i] = pages + ((int64_t)id[i] * c.n_kv + head) * ML_PAGE * width + e;
#pragma unroll
    for (int i = 0; i < ML_KTILE / at_once; i++) {
        const int in_page = i * at_once / ML_PAGE; /* at_once divides ML_PAGE */
        int r = row + i * at_once, key = tile + r;
        bool there = key >= lo && key <= hi && e < c.d;
        ml_copy_async(to + r * attn_tile<D>::ld + e,
                      there ? from[in_page] + (r - in_page * ML_PAGE) * width : pages,
                      there);
    }
}

/* Starts the copies of ROWS rows of a sequence from row `first` on, of the heads that
 * share a KV head; rows beyond n_row become zero. */
template <int D, int ROWS>
__device__ static inline void attn_fetch_rows(bf16 *to, const bf16 *from,
                                              const attn_call<bf16> &c, int first_token,
                                              int head, int first, int n_row) {
    const int per_row = D / 8, at_once = ATTN_THREADS / per_row;
    int row = (int)threadIdx.x / per_row, e = (int)threadIdx.x % per_row * 8;

#pragma unroll
    for (int i = 0; i < ROWS / at_once; i++) {
        int r = row + i * at_once;
        bool there = first + r < n_row && e < c.d;
        const bf16 *at = from + attn_head_at(c, first_token, head, first + r) * c.d + e;
        ml_copy_async(to + r * attn_tile<D>::ld + e, there ? at : from, there);
    }
}

/* A fragment (m16k16): 16 rows from `row` on, columns k .. k + 15. */
template <int D>
__device__ static inline void attn_left(uint32_t (&a)[4], const bf16 *t, int row, int k) {
    int lane = (int)threadIdx.x % 32;
    ml_ldmatrix4(a, t + (row + lane % 16) * attn_tile<D>::ld + k + lane / 16 * 8);
}

/* Two B fragments (k16n8): rows `row` .. + 15 are n, columns k .. + 15 are summed over. */
template <int D>
__device__ static inline void attn_right(uint32_t (&b)[4], const bf16 *t, int row, int k) {
    int lane = (int)threadIdx.x % 32;
    ml_ldmatrix4(b, t + (row + lane / 16 * 8 + lane % 8) * attn_tile<D>::ld + k +
                        lane / 8 % 2 * 8);
}

/* Two B fragments, transposed by ldmatrix: rows k .. k + 15 are summed over, columns
 * col .. col + 15 are n. */
template <int D>
__device__ static inline void attn_right_transposed(uint32_t (&b)[4], const bf16 *t, int k,
                                                    int col) {
    int lane = (int)threadIdx.x % 32;
    ml_ldmatrix4_trans(b, t + (k + lane % 16) * attn_tile<D>::ld + col + lane / 16 * 8);
}

/* out [16 x 8 N] = (16 rows of a) (8 N rows of b)', both D wide. */
template <int D, int N>
__device__ static inline void attn_product(float (&out)[N][4], const bf16 *a, int row_a,
                                           const bf16 *b) {
#pragma unroll
    for (int j = 0; j < N; j++)
        out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t l[4];
        attn_left<D>(l, a, row_a, k);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t r[4];
            attn_right<D>(r, b, j * 8, k);
            ml_mma(out[j], l, r[0], r[1]);
            ml_mma(out[j + 1], l, r[2], r[3]);
        }
    }
}

/* Rounds N accumulator tiles to bf16 A fragments.  Lanes exchange no data: two m16n8
 * accumulators have the map of one m16k16 A fragment. */
template <int N>
__device__ static inline void attn_round(uint32_t (&a)[N / 2][4], const float (&p)[N][4]) {
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        a[j][0] = ml_pack2(p[2 * j][0], p[2 * j][1]);
        a[j][1] = ml_pack2(p[2 * j][2], p[2 * j][3]);
        a[j][2] = ml_pack2(p[2 * j + 1][0], p[2 * j + 1][1]);
        a[j][3] = ml_pack2(p[2 * j + 1][2], p[2 * j + 1][3]);
    }
}

/* acc [16 x D] += weights [16 x 8 N] rows [8 N x D]. */
template <int D, int N>
__device__ static inline void
attn_accumulate(float (&acc)[D / 8][4], const uint32_t (&a)[N / 2][4], const bf16 *rows) {
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            uint32_t b[4];
            attn_right_transposed<D>(b, rows, k * 16, j * 8);
            ml_mma(acc[j], a[k], b[0], b[1]);
            ml_mma(acc[j + 1], a[k], b[2], b[3]);
        }
}

/* Stores two adjacent columns of an output row of d numbers. */
template <class T>
__device__ static inline void attn_put2(T *row, int d, int col, float x, float y,
                                        bool add) {
    float v[2] = { x, y }, old[2];
    if (col >= d)
        return;
    if (add) {
        ml_load(old, row + col);
        v[0] += old[0];
        v[1] += old[1];
    }
    ml_store(row + col, v);
}

#endif
