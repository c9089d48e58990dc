/* attn_mla_wgmma.cu - absorbed MLA forward with wgmma: all query heads share a key, whose
 * first 512 numbers are the value; dense, or from a list (ATTN_CHOSEN).
 *
 * A block has 64 rows, in decode heads of a token, and two warpgroups.  Both compute all
 * scores and run the same online softmax, so that they exchange nothing, and each sums half
 * of the values' columns, whose accumulators fill its registers.  The bits are those of
 * attn_wide.cu: the same tiles in the same order, products that sum alike.  Keys of 8 bits are
 * widened to one tile of bf16. */
#include "backend/cuda/attn/attn_wgmma.cuh"
#include "backend/cuda/attn/attn_wide.cuh"

enum { TEAMS = 2, COLUMNS = 512 / TEAMS, N = COLUMNS / 8 };

template <int D> struct mla_smem {
    bf16 q[ATTN_ROWS * D], buf[2][ATTN_ROWS * D]; /* panels (wgmma.cuh) */
    wide_tile tile[2];
};

/* The same size: codes of two tiles instead of a second tile of bf16. */
template <int D> struct mla_coded_smem {
    bf16 q[ATTN_ROWS * D], keys[ATTN_ROWS * D];
    uint8_t code[2][ML_KTILE * D];
    float scale[2][ML_KTILE];
    wide_tile tile[2];
};

/* Starts the copies of a tile of keys; those without an address become zero. */
template <int D>
__device__ static inline void fetch_tile(bf16 *to, const wide_tile &t,
                                         const attn_call<bf16> &c) {
#pragma unroll 6
    for (int i = (int)threadIdx.x; i < ML_KTILE * (D / 8); i += WIDE_THREADS) {
        int row = i / (D / 8), e = i % (D / 8);
        const bf16 *from = (const bf16 *)t.key[row];
        bool there = from && e * 8 < c.d;
        ml_copy_async(to + ml_panel_at(row, e), there ? from + e * 8 : c.kpage, there);
    }
}

/* All heads share a key. */
__device__ static inline const float *one_scale(const uint8_t *code, int row,
                                                const attn_call<bf16> &c) {
    return wide_scale(code, row, c.d, 0, 1);
}

/* Of a tile of codes. */
template <int D>
__device__ static inline void fetch_codes(mla_coded_smem<D> &smem, int stage,
                                          const attn_call<bf16> &c) {
#pragma unroll 3
    for (int i = (int)threadIdx.x; i < ML_KTILE * (D / ATTN_UNIT); i += WIDE_THREADS) {
        int row = i / (D / ATTN_UNIT), e = i % (D / ATTN_UNIT) * ATTN_UNIT;
        const uint8_t *from = (const uint8_t *)smem.tile[stage].key[row];
        bool there = from && e < c.d;
        uint8_t *to = smem.code[stage] + row * D + e;
        if (attn_is_paired(c.d))
            ml_copy_async(to, there ? from + e : c.kcode, there);
        else /* addresses are multiples of 8 */
            *(uint4 *)to = there
                               ? attn_load_unit(from, one_scale(from, row, c), e, c.d).code
                               : make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < ML_KTILE) {
        const uint8_t *from = (const uint8_t *)smem.tile[stage].key[threadIdx.x];
        ml_copy_async4(&smem.scale[stage][threadIdx.x],
                       from ? (const void *)one_scale(from, (int)threadIdx.x, c) : c.kcode,
                       from != NULL);
    }
}

/* A tile of keys from its codes. */
template <int D>
__device__ static inline void widen_tile(mla_coded_smem<D> &smem, int stage,
                                         const attn_call<bf16> &c) {
#pragma unroll 3
    for (int i = (int)threadIdx.x; i < ML_KTILE * (D / ATTN_UNIT); i += WIDE_THREADS) {
        int row = i / (D / ATTN_UNIT), e = i % (D / ATTN_UNIT) * ATTN_UNIT;
        attn_unit u = { *(const uint4 *)(smem.code[stage] + row * D + e),
                        smem.scale[stage][row] };
        uint4 x[2];
        attn_widen_unit(x, u, attn_is_paired(c.d), c.format);
        *(uint4 *)(smem.keys + ml_panel_at(row, e / 8)) = x[0];
        *(uint4 *)(smem.keys + ml_panel_at(row, e / 8 + 1)) = x[1];
    }
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

/* The online softmax of a tile's scores, and its sums. */
__device__ static inline void add_tile(attn_softmax &x, float (&acc)[N][4],
                                       float (&s)[8][4], uint32_t keys,
                                       const attn_limits &lim, int tile, bool first,
                                       const attn_call<bf16> &c) {
    uint32_t w[4][4];
    float keep[2];

    if (c.softcap != 0.0f)
        attn_cap(s, c);
    attn_fold(x, s, keep, lim, tile);
    if (!first)
        attn_rescale<COLUMNS>(acc, keep);
    attn_round<8>(w, s);
    ml_wgmma_fence(w);
    attn_start_sums<COLUMNS>(acc, w, ml_panel_rows(keys, attn_team() * (COLUMNS / 64), 0),
                             !first);
    for (int h = 0; h < COLUMNS / 64; h++)
        ml_wgmma_wait<0>(acc + 8 * h);
}

template <int D, bool LIST>
__global__ void __launch_bounds__(WIDE_THREADS, 1) mla_forward(attn_call<bf16> c) {
    mla_smem<D> &smem = *(mla_smem<D> *)attn_smem;
    wide_block b = wide_open<LIST, ATTN_ROWS>(c);
    int tile = b.lo / ML_KTILE * ML_KTILE;
    int row = b.row0 + (int)threadIdx.x % ML_WARPGROUP / 32 * 16; /* the warp's first */
    uint32_t q = ml_panel(smem.q);
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[N][4];
    attn_limits lim;

    if (b.p.index < 0 || b.hi < 0)
        return;
    wide_find_keys<LIST, false>(smem.tile[0], c, b, tile);
    wide_find_keys<LIST, false>(smem.tile[1], c, b, tile + ML_KTILE);
    __syncthreads();
    fetch_rows<D>(smem.q, c, b);
    fetch_tile<D>(smem.buf[0], smem.tile[0], c);
    ml_copy_commit();
    lim = LIST ? wide_list_limits(b, row) : attn_limits_of(c, b.p.first_row, row, b.n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    for (int n = 0; tile <= b.hi; tile += ML_KTILE, n++) {
        uint32_t keys = ml_panel(smem.buf[n % 2]);
        float s[8][4];

        attn_await_copies<0>(); /* the tile arrived; the one before is no longer read */
        ml_wgmma_fence();
        attn_start_scores<D>(s, q, keys);
        if (tile + ML_KTILE <= b.hi) /* during the products */
            fetch_tile<D>(smem.buf[(n + 1) % 2], smem.tile[(n + 1) % 2], c);
        ml_copy_commit();
        wide_find_keys<LIST, false>(smem.tile[n % 2], c, b, tile + 2 * ML_KTILE);
        ml_wgmma_wait<0>(s);
        add_tile(x, acc, s, keys, lim, tile, n == 0, c);
    }
    ml_copy_wait<0>();
    wide_put_rows<N>(x, acc, c, b, row, attn_team());
}

/* The same from codes, which are copied two tiles ahead and widened before the products. */
template <int D>
__global__ void __launch_bounds__(WIDE_THREADS, 1) mla_coded_forward(attn_call<bf16> c) {
    mla_coded_smem<D> &smem = *(mla_coded_smem<D> *)attn_smem;
    wide_block b = wide_open<false, ATTN_ROWS>(c);
    int tile = b.lo / ML_KTILE * ML_KTILE;
    int row = b.row0 + (int)threadIdx.x % ML_WARPGROUP / 32 * 16; /* the warp's first */
    uint32_t q = ml_panel(smem.q), keys = ml_panel(smem.keys);
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[N][4];
    attn_limits lim;

    if (b.p.index < 0 || b.hi < 0)
        return;
    for (int i = 0; i < 2; i++)
        wide_find_keys<false, true>(smem.tile[i], c, b, tile + i * ML_KTILE);
    __syncthreads();
    fetch_rows<D>(smem.q, c, b);
    for (int i = 0; i < 2; i++) {
        fetch_codes<D>(smem, i, c);
        ml_copy_commit();
    }
    lim = attn_limits_of(c, b.p.first_row, row, b.n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    for (int n = 0; tile <= b.hi; tile += ML_KTILE, n++) {
        float s[8][4];

        ml_copy_wait<1>();
        __syncthreads(); /* the codes arrived; the keys before are no longer read */
        widen_tile<D>(smem, n % 2, c);
        wide_find_keys<false, true>(smem.tile[n % 2], c, b, tile + 2 * ML_KTILE);
        ml_wgmma_publish();
        __syncthreads();
        ml_wgmma_fence();
        attn_start_scores<D>(s, q, keys);
        fetch_codes<D>(smem, n % 2, c); /* during the products; behind the last, zeros */
        ml_copy_commit();
        ml_wgmma_wait<0>(s);
        add_tile(x, acc, s, keys, lim, tile, n == 0, c);
    }
    ml_copy_wait<0>();
    wide_put_rows<N>(x, acc, c, b, row, attn_team());
}

template <bool LIST>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c,
                   void (*kernel)(attn_call<bf16>), size_t bytes) {
    unsigned per_token = (unsigned)(c.n_head + ATTN_ROWS - 1) / ATTN_ROWS;
    dim3 grid(attn_most_pieces(c.n_token, c.n_seq, c.group, ATTN_ROWS), (unsigned)c.n_kv);

    if (LIST)
        grid.x = (unsigned)(c.n_token - c.first_token) * per_token;
    else if (c.n_token == c.n_seq)
        grid.x = (unsigned)c.n_seq * ((unsigned)(c.group + ATTN_ROWS - 1) / ATTN_ROWS);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    kernel<<<grid, WIDE_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

void ml_attn_mla_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.format)
        launch<false>(s, c, mla_coded_forward<576>, sizeof(mla_coded_smem<576>));
    else
        launch<false>(s, c, mla_forward<576, false>, sizeof(mla_smem<576>));
}

void ml_attn_mla_wgmma_chosen(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 512)
        launch<true>(s, c, mla_forward<512, true>, sizeof(mla_smem<512>));
    else
        launch<true>(s, c, mla_forward<576, true>, sizeof(mla_smem<576>));
}
