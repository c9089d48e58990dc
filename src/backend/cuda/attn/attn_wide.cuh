/* attn_wide.cuh - what the mma kernels for wide heads share.
 *
 * Heads of more than 128 numbers, values of another size than keys, and keys that all query
 * heads share and whose first numbers are the value (absorbed MLA), dense or from a list.
 * A block has 8 warps: two m16 tiles of rows times four parts, of the keys for the scores,
 * of the columns for the sums.  So no warp holds more than a quarter of the accumulators of
 * 16 rows. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_WIDE_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_WIDE_CUH

#include "backend/cuda/attn/attn_codes.cuh"
#include "backend/cuda/attn/attn_fold.cuh"

enum { WIDE_THREADS = 256, WIDE_ROWS = 32, WIDE_PARTS = 4, WIDE_OWN = 16 };

/* Addresses of a tile's keys and values, numbers or codes; NULL: none. */
struct wide_tile {
    const void *key[ML_KTILE], *value[ML_KTILE];
};

/* The block's rows, and the keys lo .. hi that they read: positions, or places in a list. */
struct wide_block {
    ml_piece p;
    attn_list list;
    int head, n_row, row0, lo, hi;
};

template <bool LIST, int ROWS>
__device__ static inline wide_block wide_open(const attn_call<bf16> &c) {
    int at = (int)(gridDim.x - 1 - blockIdx.x), last;
    wide_block b = {};

    b.head = (int)blockIdx.y;
    if (LIST) {
        int per_token = (c.n_head + ROWS - 1) / ROWS;
        b.p.first_row = c.first_token + at / per_token;
        b.p.index = at % per_token;
        b.p.rows = 1;
    } else {
        b.p = attn_find_piece(c.seq_start, c.n_seq, c.n_token, c.group, ROWS, at);
        if (b.p.index < 0)
            return b;
    }
    b.n_row = b.p.rows * c.group;
    b.row0 = b.p.index * ROWS;
    if (LIST) {
        b.list = attn_list_of(c, b.p.first_row);
        b.hi = b.list.n - 1;
        return b;
    }
    last = b.row0 + ROWS < b.n_row ? b.row0 + ROWS - 1 : b.n_row - 1;
    b.list.page = c.page + c.page_start[b.p.owner];
    b.hi = c.pos[b.p.first_row + attn_token(c, last)];
    b.lo = attn_first_key(c, c.pos[b.p.first_row + attn_token(c, b.row0)]);
    return b;
}

/* The keys of the tile from `tile` on; the first 64 threads. */
template <bool LIST, bool CODED>
__device__ static inline void wide_find_keys(wide_tile &t, const attn_call<bf16> &c,
                                             const wide_block &b, int tile) {
    int key = tile + (int)threadIdx.x;
    bool there = key >= b.lo && key <= b.hi;

    if (threadIdx.x >= ML_KTILE)
        return;
    if (LIST) {
        t.key[threadIdx.x] = there ? attn_list_key(c, b.list, key) : NULL;
        return;
    }
    if (CODED) {
        t.key[threadIdx.x] =
            there ? attn_coded_key(c, b.list.page, b.head, key).code : NULL;
        t.value[threadIdx.x] =
            there ? attn_coded_value(c, b.list.page, b.head, key).code : NULL;
        return;
    }
    t.key[threadIdx.x] = there ? attn_key(c, b.list.page, b.head, key) : NULL;
    t.value[threadIdx.x] = there ? attn_value(c, b.list.page, b.head, key) : NULL;
}

/* Starts the copies of N rows of `width` numbers to rows of W; NULL and the rest become
 * zero. */
template <int W, int N>
__device__ static inline void wide_fetch(bf16 *to, const void *const *from, int width,
                                         const void *any) {
    for (int i = (int)threadIdx.x; i < N * (W / 8); i += WIDE_THREADS) {
        int row = i / (W / 8), e = i % (W / 8) * 8;
        bool there = from[row] && e < width;
        ml_copy_async(to + row * attn_tile<W>::ld + e,
                      there ? (const bf16 *)from[row] + e : any, there);
    }
}

/* Where the scale of row `row` of a tile is, whose codes begin at `code`: of one of n_kv heads. */
__device__ static inline const float *wide_scale(const uint8_t *code, int row, int width,
                                                 int head, int n_kv) {
    int at = head * ML_PAGE + row % ML_PAGE;
    return (const float *)(code + (n_kv * ML_PAGE - at) * width) + at;
}

/* A thread's part of a tile of codes, on its way from global memory. */
template <int W> struct wide_part {
    static const int n = ML_KTILE * (W / ATTN_UNIT) / WIDE_THREADS;
    attn_unit unit[n];
};

/* Loads the first n elements of rows of `width` codes; NULL and the rest are zero. */
template <int W>
__device__ static inline void wide_load_codes(wide_part<W> &p, const void *const *from,
                                              int width, int n, int head, int n_kv) {
#pragma unroll
    for (int k = 0; k < p.n; k++) {
        int i = (int)threadIdx.x + k * WIDE_THREADS;
        int row = i / (W / ATTN_UNIT), e = i % (W / ATTN_UNIT) * ATTN_UNIT;
        const uint8_t *code = (const uint8_t *)from[row];
        p.unit[k] = {};
        if (code && e < n)
            p.unit[k] =
                attn_load_unit(code, wide_scale(code, row, width, head, n_kv), e, width);
    }
}

/* Stores them as bf16, to rows of W. */
template <int W>
__device__ static inline void wide_put_codes(bf16 *to, const wide_part<W> &p, bool paired,
                                             int format) {
#pragma unroll
    for (int k = 0; k < p.n; k++) {
        int i = (int)threadIdx.x + k * WIDE_THREADS;
        int row = i / (W / ATTN_UNIT), e = i % (W / ATTN_UNIT) * ATTN_UNIT;
        uint4 x[2];
        attn_widen_unit(x, p.unit[k], paired, format);
        *(uint4 *)(to + row * attn_tile<W>::ld + e) = x[0];
        *(uint4 *)(to + row * attn_tile<W>::ld + e + 8) = x[1];
    }
}

/* Starts the copies of 32 query rows (q or dO) from row `first` of a sequence on. */
template <int W>
__device__ static inline void wide_fetch_rows(bf16 *to, const bf16 *from, int width,
                                              const attn_call<bf16> &c, int first_token,
                                              int head, int first, int n_row) {
    for (int i = (int)threadIdx.x; i < WIDE_ROWS * (W / 8); i += WIDE_THREADS) {
        int row = i / (W / 8), e = i % (W / 8) * 8;
        bool there = first + row < n_row && e < width;
        int64_t at = attn_head_at(c, first_token, head, first + row);
        ml_copy_async(to + row * attn_tile<W>::ld + e, there ? from + at * width + e : from,
                      there);
    }
}

/* s [16 x 16] = rows row_a .. of a times rows row_b .. of b, both D wide with stride W. */
template <int D, int A, int B>
__device__ static inline void wide_scores(float (&s)[2][4], const bf16 *a, int row_a,
                                          const bf16 *b, int row_b) {
#pragma unroll
    for (int j = 0; j < 2; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll 8
    for (int k = 0; k < D; k += 16) {
        uint32_t l[4], r[4];
        attn_left<A>(l, a, row_a, k);
        attn_right<B>(r, b, row_b, k);
        ml_mma(s[0], l, r[0], r[1]);
        ml_mma(s[1], l, r[2], r[3]);
    }
}

/* acc [16 x 8 N] += weights [16 x 16 K] (A fragments) times columns col .. of rows of W. */
template <int W, int K, int N>
__device__ static inline void wide_accumulate(float (&acc)[N][4], const uint32_t (&w)[K][4],
                                              const bf16 *rows, int col) {
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t b[4];
            attn_right_transposed<W>(b, rows, k * 16, col + j * 8);
            ml_mma(acc[j], w[k], b[0], b[1]);
            ml_mma(acc[j + 1], w[k], b[2], b[3]);
        }
}

/* The limits of a list: all rows have all of its keys. */
__device__ static inline attn_limits wide_list_limits(const wide_block &b, int row) {
    attn_limits lim = {};
    for (int r = 0; r < 2; r++)
        lim.pos[r] = row + (int)threadIdx.x % 32 / 4 + 8 * r < b.n_row ? b.hi : -1;
    lim.most_pos = row < b.n_row ? b.hi : -1;
    lim.least_pos = row + 15 < b.n_row ? b.hi : -1;
    return lim;
}

/* Stores columns 8 N part .. of o, and the statistics; `row` is the warp's first. */
template <int N>
__device__ static inline void wide_put_rows(const attn_softmax &x, const float (&acc)[N][4],
                                            const attn_call<bf16> &c, const wide_block &b,
                                            int row, int part) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at_row = row + lane / 4 + 8 * r;
        int64_t at = attn_head_at(c, b.p.first_row, b.head, at_row);
        float m = c.softcap != 0.0f ? x.m[r] : x.m[r] * c.scale, l = x.l[r], keep = 1.0f;
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (at_row >= b.n_row)
            continue;
        if (c.sink)
            keep = attn_add_sink(c.sink[at % c.n_head], m, l);
#pragma unroll
        for (int j = 0; j < N; j++)
            attn_put2(c.o + at * c.e, c.e, (part * N + j) * 8 + lane % 4 * 2,
                      acc[j][2 * r] * keep / l, acc[j][2 * r + 1] * keep / l, false);
        if (part == 0 && lane % 4 == 0 && c.stat) {
            c.stat[2 * at] = m;
            c.stat[2 * at + 1] = l;
        }
    }
}

/* Whether the card has so much shared memory for a block. */
static inline bool wide_fits(size_t bytes) {
    int most = 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) ==
               cudaSuccess &&
           bytes <= (size_t)most;
}

#endif
