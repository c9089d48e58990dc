/* attn_mma.cu - attention on tensor cores.
 *
 * A block has 64 rows of a sequence and one KV head, a warp 16 of them: whatever else is in the
 * tile, a row's sums are taken by the same four lanes in the same order.  Tiles of keys that a row
 * does not see leave it as it is, bit by bit.  When only a few rows are there (decoding) the other
 * warps still fetch. */
#include "backend/cuda/attn_mma.cuh"

enum { ROWS = 64 };

/* Running softmax of the two rows that a lane has, with scores before scaling. */
template <int D> struct softmax {
    float m[2], l[2], acc[D / 8][4];
    float to_log2; /* scores times this are exponents of 2 */
};

struct row_limits {
    int pos[2];                /* -1: there is no such row */
    int first[2];              /* the first key seen */
    int least_pos, last_first; /* of the warp's 16 rows: what a tile must keep within */
    int most_pos;
};

template <int D>
__device__ static void fold_tile(softmax<D> &x, float (&s)[8][4], const row_limits &lim,
                                 int tile, const attn_call<bf16> &c) {
    int lane = (int)threadIdx.x % 32;
    bool whole = tile + ML_KTILE - 1 <= lim.least_pos && tile >= lim.last_first;
    float top[2] = { x.m[0], x.m[1] }, shift[2], sum[2] = { 0.0f, 0.0f };

    if (c.softcap != 0.0f) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[j][k] = c.softcap * ml_tanh(s[j][k] * c.scale / c.softcap);
    }
    if (!whole) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int key = tile + j * 8 + lane % 4 * 2 + k % 2;
                if (key > lim.pos[k / 2] || key < lim.first[k / 2])
                    s[j][k] = -INFINITY;
            }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            top[k / 2] = ml_max(top[k / 2], s[j][k]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float keep;
        top[r] = ml_max(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = ml_max(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        shift[r] = top[r] == -INFINITY ? 0.0f : top[r] * x.to_log2;
        /* Exactly 1 where a tile brings nothing larger: such a tile changes nothing. */
        keep = top[r] == x.m[r] ? 1.0f : ml_exp2((x.m[r] - top[r]) * x.to_log2);
        x.m[r] = top[r];
        x.l[r] *= keep;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            x.acc[j][2 * r] *= keep;
            x.acc[j][2 * r + 1] *= keep;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            s[j][k] = ml_exp2(fmaf(s[j][k], x.to_log2, -shift[k / 2]));
            sum[k / 2] += s[j][k];
        }
    x.l[0] += sum[0];
    x.l[1] += sum[1];
}

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

template <int D>
__device__ static void put_rows(const softmax<D> &x, const attn_call<bf16> &c,
                                const attn_piece &p, int head, int row, int n_row) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at_row = row + lane / 4 + 8 * r;
        int64_t at = attn_head_at(c, p.first_row, head, at_row);
        float l = x.l[r];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (at_row >= n_row)
            continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            attn_put2(c.o + at * c.d, c.d, j * 8 + lane % 4 * 2, x.acc[j][2 * r] / l,
                      x.acc[j][2 * r + 1] / l, false);
        if (lane % 4 == 0) {
            c.stat[2 * at] = c.softcap != 0.0f ? x.m[r] : x.m[r] * c.scale;
            c.stat[2 * at + 1] = l;
        }
    }
}

__device__ static row_limits limits_of(const attn_call<bf16> &c, int first_row, int row,
                                       int n_row) {
    int lane = (int)threadIdx.x % 32;
    int last = row + 15 < n_row ? row + 15 : n_row - 1;
    row_limits lim;

    for (int r = 0; r < 2; r++) {
        int at = row + lane / 4 + 8 * r;
        lim.pos[r] = at < n_row ? c.pos[first_row + attn_token(c, at)] : -1;
        lim.first[r] = attn_first_key(c, lim.pos[r]);
    }
    lim.most_pos = row < n_row ? c.pos[first_row + attn_token(c, last)] : -1;
    lim.least_pos = row + 15 < n_row ? c.pos[first_row + attn_token(c, row)] : -1;
    lim.last_first = attn_first_key(c, lim.most_pos);
    return lim;
}

template <int D>
__global__ void __launch_bounds__(ATTN_THREADS) mma_forward(attn_call<bf16> c) {
    typedef attn_tile<D> tl;
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *rows = smem, *keys = rows + tl::key_tile, *values = keys + 2 * tl::key_tile;
    attn_piece p = attn_find_piece(c.seq_start, c.n_seq, c.n_token, c.group, ROWS,
                                   (int)(gridDim.x - 1 - blockIdx.x));
    int head = (int)blockIdx.y, n_row = p.rows * c.group, row0 = p.index * ROWS;
    int row = row0 + (int)threadIdx.x / 32 * 16;
    const int32_t *page;
    int32_t id[ATTN_TILE_PAGES];
    uint32_t q[D / 16][4];
    softmax<D> x = { { -INFINITY, -INFINITY } };
    row_limits lim;
    int last, lo, hi, lo_tile;

    if (p.index < 0)
        return;
    page = c.page + c.page_start[p.seq];
    last = row0 + ROWS < n_row ? row0 + ROWS - 1 : n_row - 1;
    hi = c.pos[p.first_row + attn_token(c, last)];
    lo = attn_first_key(c, c.pos[p.first_row + attn_token(c, row0)]);
    attn_fetch_rows<D, ROWS>(rows, c.q, c, p.first_row, head, row0, n_row);
    lo_tile = lo / ML_KTILE * ML_KTILE;
    attn_tile_pages(id, page, lo_tile, lo, hi);
    attn_fetch_keys<D, false>(keys, c, id, head, lo_tile, lo, hi);
    attn_fetch_keys<D, true>(values, c, id, head, lo_tile, lo, hi);
    ml_copy_commit();
    lim = limits_of(c, p.first_row, row, n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    attn_tile_pages(id, page, lo_tile + ML_KTILE, lo, hi);
    for (int tile = lo_tile, n = 0; tile <= hi; tile += ML_KTILE, n++) {
        int now = n % 2 * tl::key_tile, next = (n + 1) % 2 * tl::key_tile;
        if (tile + ML_KTILE <= hi) {
            attn_fetch_keys<D, false>(keys + next, c, id, head, tile + ML_KTILE, lo, hi);
            attn_fetch_keys<D, true>(values + next, c, id, head, tile + ML_KTILE, lo, hi);
            attn_tile_pages(id, page, tile + 2 * ML_KTILE, lo, hi);
        }
        ml_copy_commit();
        ml_copy_wait<1>();
        __syncthreads();
        if (n == 0) {
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                attn_left<D>(q[k], rows, (int)threadIdx.x / 32 * 16, k * 16);
        }
        if (tile <= lim.most_pos) {
            float s[8][4];
            uint32_t w[4][4];
            scores<D>(s, q, keys + now);
            fold_tile<D>(x, s, lim, tile, c);
            attn_round<8>(w, s);
            attn_accumulate<D, 8>(x.acc, w, values + now);
        }
        __syncthreads();
    }
    put_rows<D>(x, c, p, head, row, n_row);
}

template <int D> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t bytes = 5 * attn_tile<D>::key_tile * sizeof(bf16);
    dim3 grid(attn_most_pieces(c.n_token, c.n_seq, c.group, ROWS), (unsigned)c.n_kv);

    if (c.n_token == c.n_seq && c.group <= ROWS)
        grid.x = (unsigned)c.n_seq;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(mma_forward<D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    mma_forward<D><<<grid, ATTN_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

void ml_attn_mma(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64)
        launch<64>(s, c);
    else
        launch<128>(s, c);
}
