/* attn_decode.cu - decode attention: one query row per sequence.
 *
 * FlashAttention-2 style.  A block has a sequence and a KV head (keys are not split
 * over blocks) and the query heads that share it.  The bits
 * are those of attn_mma.cu: key tiles in the same order, each number in one chain.
 * Only the work is divided differently: of a tile's 64 keys each warp computes the
 * scores of 16, all warps run the online softmax over all 64, and each warp has a
 * quarter of the value's columns. */
#include "backend/cuda/attn/attn_decode.cuh"

/* Shared memory: queries, scores of this tile and the next, stages of keys, of values. */
template <int D, int STAGES, int R> struct decode_tile {
    static const int tile = ML_KTILE * D;
    static const int whole = R * 8 * DECODE_LD; /* scores of a tile */
    static const size_t scores = (size_t)DECODE_ROWS * attn_tile<D>::ld * sizeof(bf16);
    static const size_t stages = scores + 2 * whole * sizeof(float);
    static const size_t bytes = stages + 2 * (size_t)STAGES * tile * sizeof(bf16);
    static const int columns = D / 16 / ATTN_WARPS; /* 16-column tiles per warp */
};

/* Where column `col`, a multiple of 8, of a row is in a tile: swizzled, so that ldmatrix has no bank
 * conflicts.  Rows with padding instead read keys at 4.05 TB/s, these at 4.33: a copy of a row that
 * begins at any 16 bytes writes more lines of shared memory. */
template <int D> __device__ static int swizzled(int row, int col) {
    return row * D + (col / 8 ^ row % 8) * 8;
}

/* Scores of a warp's keys, before scaling. */
template <int D, int R>
__device__ static void decode_scores(float (&s)[R][4], const uint32_t (&q)[D / 16][R][2],
                                     const bf16 *keys) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t a[D / 16][4];

#pragma unroll
    for (int r = 0; r < R; r++)
        s[r][0] = s[r][1] = s[r][2] = s[r][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        ml_ldmatrix4(a[k], keys + swizzled<D>(warp * DECODE_OWN + lane % 16,
                                              k * 16 + lane / 16 * 8));
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int r = 0; r < R; r++)
            ml_mma(s[r], a[k], q[k][r][0], q[k][r][1]);
}

/* First operands of the warp's columns of the values, transposed and loaded ahead. */
template <int D, int M>
__device__ static void load_values(uint32_t (&a)[4][M][4], const bf16 *values) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < M; j++)
            decode_load_columns(a[k][j],
                                values + swizzled<D>(k * 16 + lane % 16,
                                                     (warp * M + j) * 16 + lane / 16 * 8));
}

/* The pipeline of tiles.  A warp copies one KV page of each.  The values of a tile are
 * copied with the keys of the next, whose scores are computed during this tile's
 * softmax. */
template <int D, int STAGES> struct tiles {
    bf16 *keys, *values;
    const int32_t *page;
    int32_t id, next_id; /* the warp's KV page of tile `at`, and of the next tile */
    int head, lo, hi;
    int at, n; /* the tile whose values are copied next: its first key, its index */
};

template <int D, int STAGES>
__device__ static int32_t page_of(const tiles<D, STAGES> &t, int tile) {
    int first = tile + (int)threadIdx.x / 32 * ML_PAGE;
    return first <= t.hi && first + ML_PAGE > t.lo ? t.page[first / ML_PAGE] : 0;
}

/* Starts the copies of a page of keys or values; those outside lo .. hi become zero. */
template <int D, int STAGES>
__device__ static void fetch_page(bf16 *to, const bf16 *pages, int32_t id, int width,
                                  const tiles<D, STAGES> &t, const attn_call<bf16> &c,
                                  int tile) {
    const int per_row = D / 8, at_once = 32 / per_row;
    int lane = (int)threadIdx.x % 32, row = lane / per_row, e = lane % per_row * 8;
    int first = tile + (int)threadIdx.x / 32 * ML_PAGE;
    const bf16 *from =
        pages + (((int64_t)id * c.n_kv + t.head) * ML_PAGE + row) * width + e;

    to += (int)threadIdx.x / 32 * ML_PAGE * D;
    if (first >= t.lo && first + ML_PAGE - 1 <= t.hi && width == D) {
#pragma unroll
        for (int i = 0; i < ML_PAGE; i += at_once)
            ml_copy_async(to + swizzled<D>(row + i, e), from + i * D, true);
        return;
    }
#pragma unroll
    for (int i = 0; i < ML_PAGE; i += at_once) {
        int key = first + row + i;
        bool there = key >= t.lo && key <= t.hi && e < c.d;
        ml_copy_async(to + swizzled<D>(row + i, e), there ? from + i * width : pages,
                      there);
    }
}

template <int D, int STAGES>
__device__ static void prefetch_keys(const tiles<D, STAGES> &t, const attn_call<bf16> &c,
                                     int32_t id, int tile, int n) {
    if (tile <= t.hi)
        fetch_page(t.keys + n % STAGES * ML_KTILE * D, c.kpage, id, c.d, t, c, tile);
}

template <int D, int STAGES>
__device__ static void prefetch(tiles<D, STAGES> &t, const attn_call<bf16> &c) {
    prefetch_keys(t, c, t.next_id, t.at + ML_KTILE, t.n + 1);
    if (t.at <= t.hi)
        fetch_page(t.values + t.n % STAGES * ML_KTILE * D, c.vpage, t.id, c.dv, t, c, t.at);
    ml_copy_commit();
    t.id = t.next_id;
    t.at += ML_KTILE;
    t.n++;
    t.next_id = page_of(t, t.at + ML_KTILE);
}

template <int D, int STAGES>
__device__ static void open_tiles(tiles<D, STAGES> &t, const attn_call<bf16> &c, bf16 *smem,
                                  int seq) {
    t.keys = smem;
    t.values = smem + STAGES * ML_KTILE * D;
    t.page = c.page + c.page_start[seq];
    t.head = (int)blockIdx.y;
    t.lo = attn_first_key(c, t.hi);
    t.at = t.lo / ML_KTILE * ML_KTILE;
    t.n = 0;
    t.id = page_of(t, t.at);
    t.next_id = page_of(t, t.at + ML_KTILE);
}

template <int D, int STAGES, int R>
__global__ void __launch_bounds__(ATTN_THREADS) decode_forward(attn_call<bf16> c) {
    typedef decode_tile<D, STAGES, R> tl;
    const int M = tl::columns;
    extern __shared__ __align__(16) unsigned char smem[];
    bf16 *rows = (bf16 *)smem;
    float *scores = (float *)(smem + tl::scores);
    int seq = (int)blockIdx.x, head = (int)blockIdx.y;
    int own = (int)threadIdx.x / 32 * DECODE_OWN; /* the warp's first key of a tile */
    tiles<D, STAGES> t;
    uint32_t q[D / 16][R][2];
    float s[R][4], acc[R][M][4] = {};
    decode_state<R> x = decode_open<R>(c);

    ml_grid_release();
    t.hi = c.pos[seq]; /* no kernel of the step writes the batch: read before the wait */
    open_tiles(t, c, (bf16 *)(smem + tl::stages), seq);
    ml_grid_wait();
    if (t.hi < 0) /* padding */
        return;
    attn_fetch_rows<D, DECODE_ROWS>(rows, c.q, c, seq, head, 0, c.group);
    prefetch_keys(t, c, t.id, t.at, 0);
    ml_copy_commit();
    for (int n = 0; n < STAGES - 1; n++)
        prefetch(t, c);
    ml_copy_wait<STAGES - 1>();
    __syncthreads();
    decode_queries<D, R>(q, rows);
    decode_scores<D, R>(s, q, t.keys);
    decode_put_scores<R>(scores + own, s);
    for (int tile = t.lo / ML_KTILE * ML_KTILE, n = 0; tile <= t.hi;
         tile += ML_KTILE, n++) {
        uint32_t w[R][4][2], a[4][M][4];

        ml_copy_wait<STAGES - 2>();
        __syncthreads(); /* this tile's scores and values arrived; a stage is free */
        prefetch(t, c);
        load_values<D, M>(a, t.values + n % STAGES * tl::tile);
        decode_scores<D, R>(
            s, q, t.keys + (n + 1) % STAGES * tl::tile); /* unused after the last */
        decode_fold<R>(x, w, scores + n % 2 * tl::whole, tile, t.lo, t.hi, c);
        decode_rescale<R, M>(acc, x);
        decode_add_values<R, M>(acc, w, a);
        decode_put_scores<R>(scores + (n + 1) % 2 * tl::whole + own, s);
    }
    if (D == ML_FP8_GROUP && c.codes.code) {
        __syncthreads(); /* scores are no longer read */
        decode_put_coded_rows<R, M, false>(x, acc, c, seq, head,
                                           *(float(*)[ATTN_WARPS][R * 8]) scores);
    }
    decode_put_rows<R, M, false>(x, acc, c, seq, head);
}

template <int D, int STAGES, int R>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    typedef decode_tile<D, STAGES, R> tl;

    ml_cuda_note(s,
                 cudaFuncSetAttribute(decode_forward<D, STAGES, R>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)tl::bytes),
                 "attention");
    ml_cuda_launch(s, "attention", decode_forward<D, STAGES, R>,
                   dim3((unsigned)c.n_seq, (unsigned)c.n_kv), ATTN_THREADS, tl::bytes, c);
}

/* Few blocks need more tiles in flight; many blocks need to share an SM.  Three blocks of two stages
 * are slower than two of three (4.27 and 4.33 TB/s). */
template <int D, int R> static void choose(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.n_seq * c.n_kv <= 128)
        launch<D, 4, R>(s, c);
    else
        launch<D, 3, R>(s, c);
}

bool ml_attn_decode_supports(const attn_call<bf16> &c) {
    return !c.format && c.n_token == c.n_seq && c.group <= DECODE_ROWS;
}

void ml_attn_decode(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64)
        c.group <= 8 ? choose<64, 1>(s, c) : choose<64, 2>(s, c);
    else
        c.group <= 8 ? choose<128, 1>(s, c) : choose<128, 2>(s, c);
}
