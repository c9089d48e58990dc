/* attn_mla_wgmma.cu - absorbed MLA forward with wgmma: all query heads share a key, whose
 * first 512 numbers are the value; dense, or from a list (ATTN_CHOSEN).
 *
 * A block has 64 rows, in decode heads of a token, and two warpgroups.  Both compute all
 * scores and run the same online softmax, so that they exchange nothing, and each sums half
 * of the values' columns, whose accumulators fill its registers.  The bits are those of
 * attn_wide.cu: the same tiles in the same order, products that sum alike. */
#include "backend/cuda/attn/attn_wgmma.cuh"
#include "backend/cuda/attn/attn_wide.cuh"

enum { TEAMS = 2, COLUMNS = 512 / TEAMS, N = COLUMNS / 8 };

template <int D> struct mla_smem {
    bf16 q[ATTN_ROWS * D], buf[2][ATTN_ROWS * D]; /* panels (wgmma.cuh) */
    wide_tile tile[2];
};

/* A tile of keys from their codes, during the products of the one before. */
template <int D>
__device__ static inline void fetch_codes(bf16 *to, const wide_tile &t,
                                          const attn_call<bf16> &c) {
#pragma unroll 3
    for (int i = (int)threadIdx.x; i < ML_KTILE * (D / ATTN_UNIT); i += WIDE_THREADS) {
        int row = i / (D / ATTN_UNIT), e = i % (D / ATTN_UNIT) * ATTN_UNIT;
        uint4 x[2];
        wide_widen(x, t.key[row], row, e, c.d, c.d, attn_is_paired(c.d), c.format);
        *(uint4 *)(to + ml_panel_at(row, e / 8)) = x[0];
        *(uint4 *)(to + ml_panel_at(row, e / 8 + 1)) = x[1];
    }
}

/* Starts the copies of a tile of keys; those without an address become zero. */
template <int D>
__device__ static inline void copy_tile(bf16 *to, const wide_tile &t,
                                        const attn_call<bf16> &c) {
#pragma unroll 6
    for (int i = (int)threadIdx.x; i < ML_KTILE * (D / 8); i += WIDE_THREADS) {
        int row = i / (D / 8), e = i % (D / 8);
        const bf16 *from = (const bf16 *)t.key[row];
        bool there = from && e * 8 < c.d;
        ml_copy_async(to + ml_panel_at(row, e), there ? from + e * 8 : c.kpage, there);
    }
}

template <int D, bool CODED>
__device__ static inline void fetch_tile(bf16 *to, const wide_tile &t,
                                         const attn_call<bf16> &c) {
    if (CODED)
        fetch_codes<D>(to, t, c);
    else
        copy_tile<D>(to, t, c);
}

template <int D>
__device__ static inline void fetch_rows(bf16 *to, const attn_call<bf16> &c,
                                         const wide_block &b) {
    for (int i = (int)threadIdx.x; i < ATTN_ROWS * (D / 8); i += WIDE_THREADS) {
        int row = i / (D / 8), e = i % (D / 8);
        bool there = b.row0 + row < b.n_row && e * 8 < c.d;
        int64_t at = attn_head_at(c, b.p.first_row, b.head, b.row0 + row);
        ml_copy_async(to + ml_panel_at(row, e), there ? c.q + at * c.d + e * 8 : c.q,
                      there);
    }
}

template <int D, bool LIST, bool CODED>
__global__ void __launch_bounds__(WIDE_THREADS, 1) mla_forward(attn_call<bf16> c) {
    mla_smem<D> &smem = *(mla_smem<D> *)attn_smem;
    wide_block b = wide_open<LIST, ATTN_ROWS>(c);
    int team = attn_team(), tile = b.lo / ML_KTILE * ML_KTILE;
    int row = b.row0 + (int)threadIdx.x % ML_WARPGROUP / 32 * 16; /* the warp's first */
    uint32_t q = ml_panel(smem.q);
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[N][4];
    attn_limits lim;

    if (b.p.index < 0 || b.hi < 0)
        return;
    wide_find_keys<LIST, CODED>(smem.tile[0], c, b, tile);
    wide_find_keys<LIST, CODED>(smem.tile[1], c, b, tile + ML_KTILE);
    __syncthreads();
    fetch_rows<D>(smem.q, c, b);
    fetch_tile<D, CODED>(smem.buf[0], smem.tile[0], c);
    ml_copy_commit();
    lim = LIST ? wide_list_limits(b, row) : attn_limits_of(c, b.p.first_row, row, b.n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    for (int n = 0; tile <= b.hi; tile += ML_KTILE, n++) {
        uint32_t keys = ml_panel(smem.buf[n % 2]), w[4][4];
        float s[8][4], keep[2];

        attn_await_copies<0>(); /* the tile arrived; the one before is no longer read */
        ml_wgmma_fence();
        attn_start_scores<D>(s, q, keys);
        if (tile + ML_KTILE <= b.hi) /* during the products */
            fetch_tile<D, CODED>(smem.buf[(n + 1) % 2], smem.tile[(n + 1) % 2], c);
        ml_copy_commit();
        wide_find_keys<LIST, CODED>(smem.tile[n % 2], c, b, tile + 2 * ML_KTILE);
        ml_wgmma_wait<0>(s);
        if (c.softcap != 0.0f)
            attn_cap(s, c);
        attn_fold(x, s, keep, lim, tile);
        if (n > 0)
            attn_rescale<COLUMNS>(acc, keep);
        attn_round<8>(w, s);
        ml_wgmma_fence(w);
        attn_start_sums<COLUMNS>(acc, w, ml_panel_rows(keys, team * (COLUMNS / 64), 0),
                                 n != 0);
        for (int h = 0; h < COLUMNS / 64; h++)
            ml_wgmma_wait<0>(acc + 8 * h);
    }
    ml_copy_wait<0>();
    wide_put_rows<N>(x, acc, c, b, row, team);
}

template <int D, bool LIST, bool CODED>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t bytes = sizeof(mla_smem<D>);
    unsigned per_token = (unsigned)(c.n_head + ATTN_ROWS - 1) / ATTN_ROWS;
    dim3 grid(attn_most_pieces(c.n_token, c.n_seq, c.group, ATTN_ROWS), (unsigned)c.n_kv);

    if (LIST)
        grid.x = (unsigned)(c.n_token - c.first_token) * per_token;
    else if (c.n_token == c.n_seq)
        grid.x = (unsigned)c.n_seq * ((unsigned)(c.group + ATTN_ROWS - 1) / ATTN_ROWS);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(mla_forward<D, LIST, CODED>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    mla_forward<D, LIST, CODED><<<grid, WIDE_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

void ml_attn_mla_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c) {
    c.format ? launch<576, false, true>(s, c) : launch<576, false, false>(s, c);
}

void ml_attn_mla_wgmma_chosen(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 512)
        launch<512, true, false>(s, c);
    else
        launch<576, true, false>(s, c);
}
