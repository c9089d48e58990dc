/* attn_mma.cu - attention forward with mma, FlashAttention-2 style (Dao 2023).
 *
 * A block has 64 rows of a sequence and one KV head, a warp 16 of the rows: whatever
 * else is in the tile, the same four lanes take a row's sums in the same order.  A key
 * tile that a row does not attend to leaves its state unchanged, bit for bit.  With few
 * rows (decode) the warps without rows still copy. */
#include "backend/cuda/attn/attn_codes.cuh"
#include "backend/cuda/attn/attn_fold.cuh"

enum { ROWS = 64 };

/* S = q k' with q's fragments kept in registers. */
template <int D>
__device__ static void scores(float (&s)[8][4], const uint32_t (&q)[D / 16][4],
                              const bf16 *keys) {
#pragma unroll
    for (int j = 0; j < 8; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t b[4];
            attn_right<D>(b, keys, j * 8, k * 16);
            ml_mma(s[j], q[k], b[0], b[1]);
            ml_mma(s[j + 1], q[k], b[2], b[3]);
        }
}

/* A thread's part of a tile of codes, on its way from global memory. */
template <int D> struct coded_part {
    static const int per_row = D / ATTN_UNIT, at_once = ATTN_THREADS / per_row;
    static const int n = ML_KTILE / at_once;
    attn_unit key[n], value[n];
};

/* Loads keys and values lo .. hi of a tile; others are zero. */
template <int D>
__device__ static void load_codes(coded_part<D> &p, const attn_call<bf16> &c,
                                  const int32_t (&id)[ATTN_TILE_PAGES], int head, int tile,
                                  int lo, int hi) {
    int row = (int)threadIdx.x / p.per_row, e = (int)threadIdx.x % p.per_row * ATTN_UNIT;

#pragma unroll
    for (int i = 0; i < p.n; i++) {
        const int pages = p.at_once / ML_PAGE; /* 1 or 2 */
        int32_t page = row < ML_PAGE ? id[i * pages] : id[i * pages + pages - 1];
        int key = tile + row + i * p.at_once;
        int slot = row % ML_PAGE;
        p.key[i] = p.value[i] = {};
        if (key < lo || key > hi || e >= c.d)
            continue;
        p.key[i] =
            attn_load_unit(attn_coded_at(c.kcode, page, head, c.n_kv, slot, c.d), e, c.d);
        p.value[i] =
            attn_load_unit(attn_coded_at(c.vcode, page, head, c.n_kv, slot, c.dv), e, c.dv);
    }
}

template <int D>
__device__ static void put_codes(bf16 *keys, bf16 *values, const coded_part<D> &p,
                                 const attn_call<bf16> &c) {
    int row = (int)threadIdx.x / p.per_row, e = (int)threadIdx.x % p.per_row * ATTN_UNIT;

#pragma unroll
    for (int i = 0; i < p.n; i++) {
        int to = (row + i * p.at_once) * attn_tile<D>::ld + e;
        uint4 x[2];
        attn_widen_unit(x, p.key[i], attn_is_paired(c.d), c.format);
        *(uint4 *)(keys + to) = x[0];
        *(uint4 *)(keys + to + 8) = x[1];
        attn_widen_unit(x, p.value[i], false, c.format);
        *(uint4 *)(values + to) = x[0];
        *(uint4 *)(values + to + 8) = x[1];
    }
}

/* CODED: pages have codes, which are loaded during the products of the tile before. */
template <int D, bool CODED>
__global__ void __launch_bounds__(ATTN_THREADS) mma_forward(attn_call<bf16> c) {
    typedef attn_tile<D> tl;
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *rows = smem, *keys = rows + tl::key_tile, *values = keys + 2 * tl::key_tile;
    ml_piece p = attn_find_piece(c.seq_start, c.n_seq, c.n_token, c.group, ROWS,
                                 (int)(gridDim.x - 1 - blockIdx.x));
    int head = (int)blockIdx.y, n_row = p.rows * c.group, row0 = p.index * ROWS;
    int row = row0 + (int)threadIdx.x / 32 * 16;
    const int32_t *page;
    int32_t id[ATTN_TILE_PAGES];
    uint32_t q[D / 16][4];
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[D / 8][4] = {};
    attn_limits lim;
    coded_part<D> part;
    int last, lo, hi, lo_tile;

    if (p.index < 0)
        return;
    page = c.page + c.page_start[p.owner];
    last = row0 + ROWS < n_row ? row0 + ROWS - 1 : n_row - 1;
    hi = c.pos[p.first_row + attn_token(c, last)];
    lo = attn_first_key(c, c.pos[p.first_row + attn_token(c, row0)]);
    attn_fetch_rows<D, ROWS>(rows, c.q, c, p.first_row, head, row0, n_row);
    lo_tile = lo / ML_KTILE * ML_KTILE;
    attn_tile_pages(id, page, lo_tile, lo, hi);
    if (CODED) {
        load_codes<D>(part, c, id, head, lo_tile, lo, hi);
        put_codes<D>(keys, values, part, c);
    } else {
        attn_fetch_keys<D, false>(keys, c, id, head, lo_tile, lo, hi);
        attn_fetch_keys<D, true>(values, c, id, head, lo_tile, lo, hi);
    }
    ml_copy_commit();
    lim = attn_limits_of(c, p.first_row, row, n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    attn_tile_pages(id, page, lo_tile + ML_KTILE, lo, hi);
    for (int tile = lo_tile, n = 0; tile <= hi; tile += ML_KTILE, n++) {
        int now = n % 2 * tl::key_tile, next = (n + 1) % 2 * tl::key_tile;
        if (CODED && tile + ML_KTILE <= hi)
            load_codes<D>(part, c, id, head, tile + ML_KTILE, lo, hi);
        if (!CODED && tile + ML_KTILE <= hi) {
            attn_fetch_keys<D, false>(keys + next, c, id, head, tile + ML_KTILE, lo, hi);
            attn_fetch_keys<D, true>(values + next, c, id, head, tile + ML_KTILE, lo, hi);
        }
        attn_tile_pages(id, page, tile + 2 * ML_KTILE, lo, hi);
        ml_copy_commit();
        ml_copy_wait<1>();
        __syncthreads();
        if (n == 0) {
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                attn_left<D>(q[k], rows, (int)threadIdx.x / 32 * 16, k * 16);
        }
        if (tile <= lim.most_pos) {
            float s[8][4], keep[2];
            uint32_t w[4][4];
            scores<D>(s, q, keys + now);
            if (c.softcap != 0.0f)
                attn_cap(s, c);
            attn_fold(x, s, keep, lim, tile);
            attn_rescale<D>(acc, keep);
            attn_round<8>(w, s);
            attn_accumulate<D, 8>(acc, w, values + now);
        }
        if (CODED && tile + ML_KTILE <= hi)
            put_codes<D>(keys + next, values + next, part, c);
        __syncthreads();
    }
    attn_put_rows<D>(x, acc, c, p, head, row, n_row);
}

template <int D, bool CODED>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t bytes = 5 * attn_tile<D>::key_tile * sizeof(bf16);
    dim3 grid(attn_most_pieces(c.n_token, c.n_seq, c.group, ROWS), (unsigned)c.n_kv);

    if (c.n_token == c.n_seq && c.group <= ROWS)
        grid.x = (unsigned)c.n_seq;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(mma_forward<D, CODED>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    mma_forward<D, CODED><<<grid, ATTN_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

void ml_attn_mma(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64)
        c.format ? launch<64, true>(s, c) : launch<64, false>(s, c);
    else
        c.format ? launch<128, true>(s, c) : launch<128, false>(s, c);
}
