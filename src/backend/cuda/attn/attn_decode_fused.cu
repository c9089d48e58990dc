/* attn_decode_fused.cu - QK norm, RoPE, the write to the KV cache and decode attention of few sequences in one
 * kernel.
 *
 * A block has a sequence, a KV head and the query heads that share it, as in attn_decode.cu.  With few
 * blocks the time is latency.  So the block copies the keys and values of earlier tokens (TMA) before the
 * previous kernel has ended (PDL); the key of this token goes from registers to its place among them.  Of
 * up to TILES tiles, a round, the warps compute the scores side by side, then the softmax, a warp a tile,
 * then the sums of values, a warp 16 columns.  The code is small, since each block executes it once or
 * twice.  The bits are those of qk_norm_rope_kv.cu and attn_decode.cu: an output is one chain over the tiles
 * in order, and a row's maximum, factor and sum of each tile are the same numbers.
 *
 * Older keys are in the KV cache before the step: no row attends to a key of another row (ml_rows.separate).
 * What the block reads before its wait is not written by the previous kernel, nor by one that may still run:
 * the previous kernel calls ml_grid_release after ml_grid_wait, so that all before it have ended.  These
 * reads pass the L1 cache, which may have the lines of the step before. */
#include "backend/cuda/attn/attn_decode.cuh"
#include "backend/cuda/attn/attn_pages.cuh"
#include "backend/cuda/attn/head_part.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    WARPS = 12,
    THREADS = WARPS * 32,
    TEAMS = THREADS / HEAD_TEAM, /* at least the heads of a block */
    TILES = 6,                   /* of a round */
    ROUND = TILES * ML_KTILE,    /* keys */
    PAGES = ROUND / ML_PAGE,
    TILE_PAGES = ML_KTILE / ML_PAGE,
    /* Of more, reading the KV cache takes the time, which attn_decode.cu overlaps with all else. */
    MOST_BLOCKS = 64
};

/* A page of keys or values in shared memory is D / 64 panels of 16 rows of 64 numbers, of which tensor
 * copies swap pieces of 8 numbers: piece p of row r is at p ^ r % 8. */
template <int D> struct fused_page {
    bf16 panel[D / 64][ML_PAGE][64];

    /* Numbers e .. e + 7 of a row. */
    __device__ uint4 *at(int row, int e) {
        return (uint4 *)(panel[e / 64][row] + (e / 8 % 8 ^ row % 8) * 8);
    }
    /* The lane's address for ldmatrix of 16 rows, columns 16 k to 16 k + 15. */
    __device__ const bf16 *columns(int k) const {
        int lane = (int)threadIdx.x % 32, row = lane % 16;
        return panel[k / 4][row] + ((k % 4 * 2 + lane / 16) ^ row % 8) * 8;
    }
};

/* The weights of a tile: of each lane, and then the lanes' parts of their sums. */
template <int R> struct fused_weights {
    uint4 w[R][2][32];
    float sum[R][32];
};

/* Shared memory.  Weights replace the scores of their tile; `top` is the largest score of a row of a tile,
 * `keep` the factor of earlier sums. */
template <int D, int R> struct fused_smem {
    fused_page<D> keys[PAGES], values[PAGES];
    bf16 rows[DECODE_ROWS * attn_tile<D>::ld];
    union {
        float scores[R * 8 * DECODE_LD];
        fused_weights<R> weights;
    } tile[TILES];
    float top[TILES][R * 8], keep[TILES][R * 8];
    ml_barrier keys_full, values_full;
};

extern __shared__ __align__(1024) unsigned char fused_bytes[];

/* The keys that the block's rows attend to, lo .. hi; hi is that of this token. */
struct span {
    const int32_t *page;
    int lo, hi, head;

    __device__ span(const attn_call<bf16> &c, int seq, int head_)
        : page(c.page + __ldcg(c.page_start + seq)), hi(__ldcg(c.pos + seq)), head(head_) {
        lo = attn_first_key(c, hi);
    }
    __device__ int first_round() const {
        return lo / ML_KTILE * ML_KTILE;
    }
    /* Tiles of the round that begins at key `first`. */
    __device__ int tiles_of(int first) const {
        int n = (hi - first) / ML_KTILE + 1;
        return n < TILES ? n : TILES;
    }
    /* Has the page of keys key .. key + 15 older ones that are attended to? */
    __device__ bool is_copied(int key) const {
        return key < hi && key + ML_PAGE > lo;
    }
    __device__ int copied_pages(int first) const {
        int from = lo > first ? lo : first, end = hi < first + ROUND ? hi : first + ROUND;
        return end > from ? (end - 1) / ML_PAGE - from / ML_PAGE + 1 : 0;
    }
};

/* ---- copies of pages, of which each warp has every WARPS-th ---- */

/* The page of a round that a thread copies, or PAGES. */
__device__ static int own_page(void) {
    int i = (int)threadIdx.x % 32 * WARPS + (int)threadIdx.x / 32;

    return i < PAGES ? i : PAGES;
}

/* Its id; -1: there is none to copy. */
__device__ static int32_t page_id(const span &s, int first) {
    int page = own_page(), key = first + page * ML_PAGE;

    return page < PAGES && s.is_copied(key) ? __ldcg(s.page + key / ML_PAGE) : -1;
}

/* Starts the copies of a round's keys, or values. */
template <int D>
__device__ static void copy_round(fused_page<D> *to, const CUtensorMap *map, int32_t id,
                                  int first, const span &s, const attn_call<bf16> &c,
                                  ml_barrier *full) {
    if (threadIdx.x == 0)
        ml_barrier_expect(full, (unsigned)(s.copied_pages(first) * (int)sizeof *to));
    if (id >= 0)
        ml_tensor_copy(to + own_page(), map, 0, (id * c.n_kv + s.head) * ML_PAGE, 0, full);
}

/* Values that no copy brings become zero: their weights are zero. */
template <int D>
__device__ static void clear_round(fused_page<D> *to, int first, const span &s) {
    int n = first <= s.hi ? s.tiles_of(first) * TILE_PAGES : 0;

#pragma unroll 1
    for (int i = (int)threadIdx.x / 32; i < n; i += WARPS)
        if (!s.is_copied(first + i * ML_PAGE))
            for (int k = (int)threadIdx.x % 32; k < (int)(sizeof *to / sizeof(uint4));
                 k += 32)
                ((uint4 *)(to + i))[k] = make_uint4(0, 0, 0, 0);
}

/* The same of the rows behind that of hi in its page. */
template <int D> __device__ static void clear_tail(fused_page<D> *to, const span &s) {
    int row = (int)threadIdx.x / (D / 8), e = (int)threadIdx.x % (D / 8) * 8;

    if (row > s.hi % ML_PAGE && row < ML_PAGE)
        *to->at(row, e) = make_uint4(0, 0, 0, 0);
}

/* ---- this token's heads ---- */

/* The head of a team: one of the queries that share the KV head, its key, its value, or none. */
__device__ static int head_of_team(const attn_call<bf16> &c, int kv_head) {
    int team = (int)threadIdx.x / HEAD_TEAM;

    if (team < c.group)
        return kv_head * c.group + team;
    if (team < c.group + 2)
        return c.n_head + (team - c.group) * c.n_kv + kv_head;
    return c.n_head + 2 * c.n_kv;
}

/* Writes a key, or a value, to its row of a page. */
template <int D>
__device__ static void put_own(fused_page<D> *to, const head_part &x, int row, int e) {
    x.low.store((bf16 *)to->at(row, e));
    x.high.store((bf16 *)to->at(row, e + D / 2));
}

/* ---- a round ---- */

/* Scores of 16 keys. */
template <int D, int R>
__device__ static void score_page(float *to, const uint32_t (&q)[D / 16][R][2],
                                  const fused_page<D> &keys) {
    uint32_t a[D / 16][4];
    float s[R][4] = {};

#pragma unroll
    for (int k = 0; k < D / 16; k++)
        ml_ldmatrix4(a[k], keys.columns(k));
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int r = 0; r < R; r++)
            ml_mma(s[r], a[k], q[k][r][0], q[k][r][1]);
    decode_put_scores<R>(to, s);
}

/* The online softmax over the tiles of a round: warp i has tile i.  All warps of the block call it, and x.m
 * becomes the maximum of all tiles. */
template <class S, int R>
__device__ static void fold_round(decode_state<R> &x, S &smem, const span &at, int first) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = at.tiles_of(first);
    float s[R][8][2], own[R];

#pragma unroll
    for (int r = 0; r < R; r++) {
        if (warp >= n)
            break;
        decode_get_scores(s[r], smem.tile[warp].scores, r);
        decode_mask(s[r], first + warp * ML_KTILE, at.lo, at.hi);
        own[r] = decode_top(s[r], -INFINITY);
        if (lane % 4 == 0)
            smem.top[warp][8 * r + lane / 4] = own[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) {
        float before = x.m[r], now;
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            x.m[r] = fmaxf(x.m[r], smem.top[i][8 * r + lane / 4]);
            before = i < warp ? x.m[r] : before;
        }
        if (warp >= n)
            continue;
        now = fmaxf(before, own[r]);
        if (lane % 4 == 0)
            smem.keep[warp][8 * r + lane / 4] = decode_keep(before, now, x.to_log2);
        smem.tile[warp].weights.sum[r][lane] = decode_weigh(s[r], now, x.to_log2);
#pragma unroll
        for (int i = 0; i < 2; i++)
            smem.tile[warp].weights.w[r][i][lane] =
                make_uint4(ml_pack2(s[r][4 * i][0], s[r][4 * i][1]),
                           ml_pack2(s[r][4 * i + 1][0], s[r][4 * i + 1][1]),
                           ml_pack2(s[r][4 * i + 2][0], s[r][4 * i + 2][1]),
                           ml_pack2(s[r][4 * i + 3][0], s[r][4 * i + 3][1]));
    }
}

/* Adds a tile's values, of the warp's 16 columns, times weights. */
template <class S, int D, int R>
__device__ static void add_tile(decode_state<R> &x, float (&acc)[R][1][4], const S &smem,
                                int tile, const fused_page<D> *values) {
    int lane = (int)threadIdx.x % 32;
    const float *keep = smem.keep[tile];
    uint32_t a[4][1][4], w[R][4][2];

#pragma unroll
    for (int k = 0; k < TILE_PAGES; k++)
        decode_load_columns(a[k][0], values[k].columns((int)threadIdx.x / 32));
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 v = smem.tile[tile].weights.w[r][i][lane];
            w[r][2 * i][0] = v.x;
            w[r][2 * i][1] = v.y;
            w[r][2 * i + 1][0] = v.z;
            w[r][2 * i + 1][1] = v.w;
        }
        x.l[r] *= keep[8 * r + lane / 4];
        x.l[r] += smem.tile[tile].weights.sum[r][lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[r][0][i] *= keep[8 * r + lane % 4 * 2 + i % 2];
    }
    decode_add_values<R, 1>(acc, w, a);
}

/* ---- the kernel ---- */

template <int D, int R>
__global__ static void __launch_bounds__(THREADS)
    fused_kernel(const __grid_constant__ ml_qk_norm_rope h,
                 const __grid_constant__ attn_page_maps maps) {
    typedef fused_smem<D, R> S;
    S &smem = *(S *)fused_bytes;
    const attn_call<bf16> &c = h.to;
    int warp = (int)threadIdx.x / 32, team = (int)threadIdx.x / HEAD_TEAM;
    int seq = (int)blockIdx.x, e = (int)threadIdx.x % HEAD_TEAM * HEAD_PACK;
    const head_of o(c, head_of_team(c, (int)blockIdx.y), e);
    const bool is_k = o.there && team == c.group, is_v = o.there && o.is_v;
    int32_t id;
    uint32_t q[D / 16][R][2];
    float acc[R][1][4] = {};
    decode_state<R> x = decode_open<R>(c);
    head_part own;
    bf16 *own_at = NULL;

    ml_grid_release();
    ml_touch_params(h);
    const span at(c, seq, (int)blockIdx.y);
    const head_weights weights(h, o, e);
    head_angles angles = {};
    if (e < D / 2)
        angles.load(h.cs + (int64_t)seq * D + e, D / 2);
    if (threadIdx.x == 0) {
        ml_barrier_init(&smem.keys_full);
        ml_barrier_init(&smem.values_full);
        ml_barrier_init_end();
    }
    for (int i = (int)threadIdx.x; i < (int)(sizeof smem.rows / sizeof(uint4));
         i += THREADS)
        ((uint4 *)smem.rows)[i] = make_uint4(0, 0, 0, 0); /* rows of no query */
    __syncthreads();
    if (at.hi >= 0) {
        int32_t last_id = __ldcg(at.page + at.hi / ML_PAGE);
        id = page_id(at, at.first_round());
        copy_round<D>(smem.keys, &maps.keys, id, at.first_round(), at, c, &smem.keys_full);
        copy_round<D>(smem.values, &maps.values, id, at.first_round(), at, c,
                      &smem.values_full);
        clear_round<D>(smem.values, at.first_round(), at);
        if (at.lo % ML_KTILE)
            ml_wgmma_publish(); /* a later copy follows what clear_round wrote */
        if (is_k || is_v)
            own_at =
                (is_v ? c.vpage : c.kpage) + e +
                (((int64_t)last_id * c.n_kv + at.head) * ML_PAGE + at.hi % ML_PAGE) * D;
    }
    ml_grid_wait();
    if (at.hi < 0) /* padding */
        return;
    head_load(own, h, o, seq, e, D / 2);
    if (!__all_sync(0xffffffffu, o.is_v))
        head_norm_rope(own, h, o, weights, angles, seq, e, D / 2);
    if (own_at)
        own.store(own_at, D / 2);
    if (o.is_q && o.there)
        own.store(smem.rows + team * attn_tile<D>::ld + e, D / 2);
#pragma unroll 1
    for (int first = at.first_round(), n = 0; first <= at.hi; first += ROUND, n++) {
        const int last_page = (at.hi - first) / ML_PAGE;
        const unsigned parity = (unsigned)n & 1;
        const bool last = last_page < PAGES;

        ml_barrier_wait(&smem.keys_full, parity);
        if (last && is_k)
            put_own<D>(smem.keys + last_page, own, at.hi % ML_PAGE, e);
        __syncthreads(); /* keys and queries are there; the round before has read its values */
        if (n == 0) {
            decode_queries<D, R>(q, smem.rows);
        } else {
            copy_round<D>(smem.values, &maps.values, id, first, at, c, &smem.values_full);
            if (last)
                clear_round<D>(smem.values, first, at);
        }
        id = page_id(at, first + ROUND);
#pragma unroll 1
        for (int i = warp; i < at.tiles_of(first) * TILE_PAGES; i += WARPS)
            score_page<D, R>(smem.tile[i / TILE_PAGES].scores + i % TILE_PAGES * ML_PAGE, q,
                             smem.keys[i]);
        __syncthreads(); /* scores are there, and keys are free */
        copy_round<D>(smem.keys, &maps.keys, id, first + ROUND, at, c, &smem.keys_full);
        fold_round<S, R>(x, smem, at, first);
        ml_barrier_wait(&smem.values_full, parity);
        if (last) {
            clear_tail<D>(smem.values + last_page, at);
            if (is_v)
                put_own<D>(smem.values + last_page, own, at.hi % ML_PAGE, e);
        }
        __syncthreads();
#pragma unroll 1
        for (int i = 0; warp < D / 16 && i < at.tiles_of(first); i++)
            add_tile<S, D, R>(x, acc, smem, i, smem.values + i * TILE_PAGES);
    }
    decode_put_rows<R, 1, false>(x, acc, c, seq, at.head);
}

template <int D, int R> static void launch(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    const size_t bytes = sizeof(fused_smem<D, R>);
    attn_page_maps maps;

    ml_cuda_note(s, attn_map_whole_pages(&maps.keys, h->to.kpage, D), "attention");
    ml_cuda_note(s, attn_map_whole_pages(&maps.values, h->to.vpage, D), "attention");
    ml_cuda_note(s,
                 cudaFuncSetAttribute(fused_kernel<D, R>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    ml_cuda_launch(s, "attention", fused_kernel<D, R>,
                   dim3((unsigned)h->to.n_seq, (unsigned)h->to.n_kv), THREADS, bytes, *h,
                   maps);
}

bool ml_attn_decode_fused_supports(const ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    const attn_call<bf16> &c = h->to;

    return s->wgmma && !c.format && c.softcap == 0.0f && (c.d == 64 || c.d == 128) &&
           c.n_token > 0 && c.separate && c.group <= DECODE_ROWS &&
           c.n_seq * c.n_kv <= MOST_BLOCKS;
}

void ml_attn_decode_fused(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    if (h->to.d == 64)
        h->to.group <= 8 ? launch<64, 1>(s, h) : launch<64, 2>(s, h);
    else
        h->to.group <= 8 ? launch<128, 1>(s, h) : launch<128, 2>(s, h);
}
