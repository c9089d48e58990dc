/* attn_mma_back.cu - attention backward with mma, without atomics.
 *
 * The equations of FlashAttention-2, in two kernels: one loops over keys for a tile of
 * query rows (dq), the other over query rows for a tile of keys (dk, dv); both
 * recompute the scores.  Every gradient has one writer and one order of sums. */
#include "backend/cuda/attn/attn_mma.cuh"

enum { ROWS = 64, STEP = 32 /* query rows per step of the dk, dv loop */ };

struct row_stat {
    float shift, delta;
};

__device__ static row_stat stat_of(const attn_call<bf16> &c, int first_token, int head,
                                   int row, int n_row) {
    row_stat r = { 0.0f, 0.0f };
    if (row < n_row) {
        int64_t at = attn_head_at(c, first_token, head, row);
        r.shift = c.shift[at];
        r.delta = c.delta[at];
    }
    return r;
}

/* P and dS of one score; s is the raw dot product, dp is dP. */
template <bool CAP>
__device__ static inline void weigh(const attn_call<bf16> &c, const row_stat &r, bool seen,
                                    float s, float dp, float &p, float &ds) {
    float slope = c.scale;
    if (CAP) {
        s = c.softcap * ml_tanh(s * c.scale / c.softcap);
        slope *= attn_cap_slope(s, c.softcap);
        s *= ML_LOG2E;
    } else {
        s *= c.scale * ML_LOG2E;
    }
    p = seen ? ml_exp2(s - r.shift) : 0.0f;
    ds = p * (dp - r.delta) * slope;
}

/* ---- dq ---- */

template <int D, bool CAP>
__global__ void __launch_bounds__(ATTN_THREADS) mma_back_queries(attn_call<bf16> c) {
    typedef attn_tile<D> tl;
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *rows = smem, *outs = rows + tl::key_tile;
    bf16 *keys = outs + tl::key_tile, *values = keys + 2 * tl::key_tile;
    ml_piece p = attn_find_piece(c.seq_start, c.n_seq, c.n_token, c.group, ROWS,
                                 (int)(gridDim.x - 1 - blockIdx.x));
    int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    int head = (int)blockIdx.y, n_row = p.rows * c.group, row0 = p.index * ROWS;
    const int32_t *page;
    row_stat stat[2];
    int32_t id[ATTN_TILE_PAGES];
    int pos[2], first[2], last, lo, hi, lo_tile;
    float acc[D / 8][4] = {};

    if (p.index < 0)
        return;
    page = c.page + c.page_start[p.owner];
    last = row0 + ROWS < n_row ? row0 + ROWS - 1 : n_row - 1;
    hi = c.pos[p.first_row + attn_token(c, last)];
    lo = attn_first_key(c, c.pos[p.first_row + attn_token(c, row0)]);
    attn_fetch_rows<D, ROWS>(rows, c.q, c, p.first_row, head, row0, n_row);
    attn_fetch_rows<D, ROWS>(outs, c.dout, c, p.first_row, head, row0, n_row);
    lo_tile = lo / ML_KTILE * ML_KTILE;
    attn_tile_pages(id, page, lo_tile, lo, hi);
    attn_fetch_keys<D, false>(keys, c, id, head, lo_tile, lo, hi);
    attn_fetch_keys<D, true>(values, c, id, head, lo_tile, lo, hi);
    ml_copy_commit();
    for (int r = 0; r < 2; r++) {
        int row = row0 + own + lane / 4 + 8 * r;
        stat[r] = stat_of(c, p.first_row, head, row, n_row);
        pos[r] = row < n_row ? c.pos[p.first_row + attn_token(c, row)] : -1;
        first[r] = attn_first_key(c, pos[r]);
    }
    attn_tile_pages(id, page, lo_tile + ML_KTILE, lo, hi);
    for (int tile = lo_tile, n = 0; tile <= hi; tile += ML_KTILE, n++) {
        int now = n % 2 * tl::key_tile, next = (n + 1) % 2 * tl::key_tile;
        float s[8][4], dp[8][4];
        uint32_t w[4][4];
        if (tile + ML_KTILE <= hi) {
            attn_fetch_keys<D, false>(keys + next, c, id, head, tile + ML_KTILE, lo, hi);
            attn_fetch_keys<D, true>(values + next, c, id, head, tile + ML_KTILE, lo, hi);
            attn_tile_pages(id, page, tile + 2 * ML_KTILE, lo, hi);
        }
        ml_copy_commit();
        ml_copy_wait<1>();
        __syncthreads();
        attn_product<D, 8>(s, rows, own, keys + now);
        attn_product<D, 8>(dp, outs, own, values + now);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int key = tile + j * 8 + lane % 4 * 2 + k % 2;
                float weight;
                weigh<CAP>(c, stat[k / 2], key <= pos[k / 2] && key >= first[k / 2],
                           s[j][k], dp[j][k], weight, s[j][k]);
            }
        attn_round<8>(w, s);
        attn_accumulate<D, 8>(acc, w, keys + now);
        __syncthreads();
    }
    for (int r = 0; r < 2; r++) {
        int row = row0 + own + lane / 4 + 8 * r;
        int64_t at = attn_head_at(c, p.first_row, head, row);
        if (row >= n_row)
            continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            attn_put2(c.dq + at * c.d, c.d, j * 8 + lane % 4 * 2, acc[j][2 * r],
                      acc[j][2 * r + 1], c.add_q);
    }
}

/* ---- dk, dv ---- */

/* A stage of query rows: q and dO; back_smem has their LSE, delta and positions. */
template <int D> struct back_stage {
    bf16 q[STEP * attn_tile<D>::ld], dout[STEP * attn_tile<D>::ld];
};

template <int D> struct back_smem {
    bf16 keys[attn_tile<D>::key_tile], values[attn_tile<D>::key_tile];
    back_stage<D> stage[2];
    row_stat stat[2][STEP];
    int pos[2][STEP];
};

template <int D>
__device__ static void fetch_step(back_smem<D> &smem, int n, const attn_call<bf16> &c,
                                  int first_row, int head, int row, int n_row) {
    attn_fetch_rows<D, STEP>(smem.stage[n % 2].q, c.q, c, first_row, head, row, n_row);
    attn_fetch_rows<D, STEP>(smem.stage[n % 2].dout, c.dout, c, first_row, head, row,
                             n_row);
    if (threadIdx.x < STEP) {
        int at = row + (int)threadIdx.x;
        smem.stat[n % 2][threadIdx.x] = stat_of(c, first_row, head, at, n_row);
        smem.pos[n % 2][threadIdx.x] =
            at < n_row ? c.pos[first_row + attn_token(c, at)] : -1;
    }
}

template <int D, class T>
__device__ static void put_keys(T *to, const float (&acc)[D / 8][4],
                                const attn_call<bf16> &c, const ml_piece &p, int head,
                                int key, bool add) {
    int lane = (int)threadIdx.x % 32;
    for (int r = 0; to && r < 2; r++) {
        int token = key + lane / 4 + 8 * r;
        if (token >= p.rows)
            continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            attn_put2(to + ((int64_t)(p.first_row + token) * c.n_kv + head) * c.d, c.d,
                      j * 8 + lane % 4 * 2, acc[j][2 * r], acc[j][2 * r + 1], add);
    }
}

/* A plan with a backward has all keys of a sequence in its batch, or those behind a prefix
 * that is a sequence of its batch, or those of all ranks (attn_readers). */
template <int D, bool CAP>
__global__ void __launch_bounds__(ATTN_THREADS) mma_back_keys(attn_call<bf16> c) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    back_smem<D> &smem = *(back_smem<D> *)smem_bytes;
    ml_piece p = attn_find_piece(c.keys.seq_start, c.keys.n_seq, c.keys.n, 1, ML_KTILE,
                                 (int)blockIdx.x);
    int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    int head = (int)blockIdx.y, tile = p.index * ML_KTILE;
    int row, end, n_row, base;
    int32_t id[ATTN_TILE_PAGES];
    const int32_t *page;
    attn_reads by;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};

    if (p.index < 0)
        return;
    page = c.keys.page + c.keys.page_start[p.owner];
    by = attn_readers(c, p.owner, p.first_row, c.keys.piece != NULL);
    base = attn_base(c, p.first_row);
    n_row = by.n * c.group;
    row = attn_first_reader(c, by, tile) * c.group / STEP * STEP;
    end = attn_end_reader(c, by, tile + ML_KTILE - 1, p.rows) * c.group;
    if (row >= end) /* ml_attn_clear_keys has written zeros */
        return;
    attn_tile_pages(id, page, base + tile, base, base + p.rows - 1);
    attn_fetch_keys<D, false>(smem.keys, c, id, head, base + tile, base, base + p.rows - 1);
    attn_fetch_keys<D, true>(smem.values, c, id, head, base + tile, base,
                             base + p.rows - 1);
    fetch_step<D>(smem, 0, c, by.first, head, row, n_row);
    ml_copy_commit();
    for (int n = 0; row < end; row += STEP, n++) {
        float s[STEP / 8][4], dp[STEP / 8][4];
        uint32_t w[STEP / 16][4], dw[STEP / 16][4];
        const back_stage<D> &now = smem.stage[n % 2];
        if (row + STEP < end)
            fetch_step<D>(smem, n + 1, c, by.first, head, row + STEP, n_row);
        ml_copy_commit();
        ml_copy_wait<1>();
        __syncthreads();
        attn_product<D, STEP / 8>(s, smem.keys, own, now.q);
        attn_product<D, STEP / 8>(dp, smem.values, own, now.dout);
#pragma unroll
        for (int j = 0; j < STEP / 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int key = base + tile + own + lane / 4 + 8 * (k / 2),
                    col = j * 8 + lane % 4 * 2 + k % 2;
                int pos = smem.pos[n % 2][col];
                bool seen = key <= pos && key >= attn_first_key(c, pos);
                weigh<CAP>(c, smem.stat[n % 2][col], seen, s[j][k], dp[j][k], s[j][k],
                           dp[j][k]);
            }
        attn_round<STEP / 8>(w, s);
        attn_round<STEP / 8>(dw, dp);
        attn_accumulate<D, STEP / 8>(dv, w, now.dout);
        attn_accumulate<D, STEP / 8>(dk, dw, now.q);
        __syncthreads();
    }
    if (by.pieces) {
        put_keys<D>((float *)c.dk, dk, c, p, head, tile + own, c.add_k);
        put_keys<D>((float *)c.dv_out, dv, c, p, head, tile + own, c.add_v);
    } else {
        put_keys<D>(c.dk, dk, c, p, head, tile + own, c.add_k);
        put_keys<D>(c.dv_out, dv, c, p, head, tile + own, c.add_v);
    }
}

template <int D, bool CAP> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t query_bytes = 6 * attn_tile<D>::key_tile * sizeof(bf16),
           key_bytes = sizeof(back_smem<D>);
    dim3 queries(attn_most_pieces(c.n_token, c.n_seq, c.group, ROWS), (unsigned)c.n_kv);
    dim3 keys(attn_most_pieces(c.keys.n, c.keys.n_seq, 1, ML_KTILE), (unsigned)c.n_kv);

    if (c.n_token == c.n_seq && c.group <= ROWS)
        queries.x = (unsigned)c.n_seq;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(mma_back_queries<D, CAP>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)query_bytes),
                 "attention backward");
    ml_cuda_note(s,
                 cudaFuncSetAttribute(mma_back_keys<D, CAP>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)key_bytes),
                 "attention backward");
    if (c.dq)
        mma_back_queries<D, CAP><<<queries, ATTN_THREADS, query_bytes, s->stream>>>(c);
    if (c.dk || c.dv_out)
        mma_back_keys<D, CAP><<<keys, ATTN_THREADS, key_bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

template <int D> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.softcap != 0.0f)
        launch<D, true>(s, c);
    else
        launch<D, false>(s, c);
}

void ml_attn_mma_back(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64)
        launch<64>(s, c);
    else
        launch<128>(s, c);
}
