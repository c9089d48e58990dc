/* attn_wide.cu - attention forward with mma for wide heads: see attn_wide.cuh.
 *
 * A block has 32 rows of a sequence, in decode the heads of a token.  Of a tile's 64 keys
 * each warp computes the scores of 16; the four warps of a row then run the same online
 * softmax over all 64, and each sums a quarter of the values' columns.  Decode, prefill and
 * training run this kernel: a row's sums have one order. */
#include "backend/cuda/attn/attn_wide.cuh"

enum { SCORE_LD = ML_KTILE + 8 };

template <int D> struct forward_smem {
    bf16 rows[WIDE_ROWS * attn_tile<D>::ld];
    bf16 buf[2][attn_tile<D>::key_tile]; /* tiles in turn; or keys, values */
    float scores[WIDE_ROWS * SCORE_LD];
    wide_tile tile[2];
};

__device__ static void put_scores(float *to, const float (&s)[2][4], int own, int part) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            *(float2 *)(to + (own + lane / 4 + 8 * r) * SCORE_LD + part * WIDE_OWN + j * 8 +
                        lane % 4 * 2) = make_float2(s[j][2 * r], s[j][2 * r + 1]);
}

/* Weights P of a tile as A fragments; acc is rescaled. */
template <int N>
__device__ static void fold_tile(attn_softmax &x, uint32_t (&w)[4][4], float (&acc)[N][4],
                                 const float *scores, int own, const attn_limits &lim,
                                 int tile, const attn_call<bf16> &c) {
    int lane = (int)threadIdx.x % 32;
    float s[8][4], keep[2];

#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 v = *(const float2 *)(scores + (own + lane / 4 + 8 * r) * SCORE_LD +
                                         j * 8 + lane % 4 * 2);
            s[j][2 * r] = v.x;
            s[j][2 * r + 1] = v.y;
        }
    if (c.softcap != 0.0f)
        attn_cap(s, c);
    attn_fold(x, s, keep, lim, tile);
    attn_rescale<8 * N>(acc, keep);
    attn_round<8>(w, s);
}

template <int D, int E, bool IN_KEY, bool LIST>
__global__ void __launch_bounds__(WIDE_THREADS, D > 256 ? 1 : 2)
    wide_forward(attn_call<bf16> c) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    forward_smem<D> &smem = *(forward_smem<D> *)smem_bytes;
    const int N = E / 8 / WIDE_PARTS;
    wide_block b = wide_open<LIST, WIDE_ROWS>(c);
    int warp = (int)threadIdx.x / 32, part = warp % WIDE_PARTS;
    int own = warp / WIDE_PARTS * WIDE_OWN, row = b.row0 + own;
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[N][4] = {};
    attn_limits lim;

    if (b.p.index < 0 || b.hi < 0)
        return;
    b.lo = LIST ? 0 : b.lo;
    wide_find_keys<LIST, false>(smem.tile[0], c, b, b.lo / ML_KTILE * ML_KTILE);
    __syncthreads();
    wide_fetch_rows<D>(smem.rows, c.q, c.d, c, b.p.first_row, b.head, b.row0, b.n_row);
    wide_fetch<D, ML_KTILE>(smem.buf[0], smem.tile[0].key, c.d, c.kpage);
    ml_copy_commit();
    lim = LIST ? wide_list_limits(b, row) : attn_limits_of(c, b.p.first_row, row, b.n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    for (int tile = b.lo / ML_KTILE * ML_KTILE, n = 0; tile <= b.hi;
         tile += ML_KTILE, n++) {
        const bf16 *keys = smem.buf[IN_KEY ? n % 2 : 0];
        const bf16 *values = smem.buf[IN_KEY ? n % 2 : 1];
        bool more = tile + ML_KTILE <= b.hi;
        float s[2][4];
        uint32_t w[4][4];

        if (more)
            wide_find_keys<LIST, false>(smem.tile[(n + 1) % 2], c, b, tile + ML_KTILE);
        ml_copy_wait<0>();
        __syncthreads(); /* the keys arrived; the tile before is no longer read */
        if (IN_KEY && more)
            wide_fetch<D, ML_KTILE>(smem.buf[(n + 1) % 2], smem.tile[(n + 1) % 2].key, c.d,
                                    c.kpage);
        if (!IN_KEY)
            wide_fetch<D, ML_KTILE>(smem.buf[1], smem.tile[n % 2].value, c.e, c.kpage);
        ml_copy_commit();
        if (tile <= lim.most_pos) {
            wide_scores<D, D, D>(s, smem.rows, own, keys, part * WIDE_OWN);
            put_scores(smem.scores, s, own, part);
        }
        __syncthreads(); /* scores are there; the keys are no longer read */
        if (!IN_KEY) {
            if (more)
                wide_fetch<D, ML_KTILE>(smem.buf[0], smem.tile[(n + 1) % 2].key, c.d,
                                        c.kpage);
            ml_copy_commit();
        }
        if (tile <= lim.most_pos)
            fold_tile<N>(x, w, acc, smem.scores, own, lim, tile, c);
        if (!IN_KEY) {
            ml_copy_wait<1>();
            __syncthreads(); /* the values arrived */
        }
        if (tile <= lim.most_pos)
            wide_accumulate<D, 4, N>(acc, w, values, part * N * 8);
    }
    wide_put_rows<N>(x, acc, c, b, row, part);
}

/* The same from pages of codes, which are loaded to registers a tile ahead; their addresses are
 * found two tiles ahead. */
template <int D, int E, bool IN_KEY>
__global__ void __launch_bounds__(WIDE_THREADS, 1) wide_coded_forward(attn_call<bf16> c) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    forward_smem<D> &smem = *(forward_smem<D> *)smem_bytes;
    const int N = E / 8 / WIDE_PARTS;
    wide_block b = wide_open<false, WIDE_ROWS>(c);
    int warp = (int)threadIdx.x / 32, part = warp % WIDE_PARTS;
    int own = warp / WIDE_PARTS * WIDE_OWN, row = b.row0 + own;
    int tile = b.lo / ML_KTILE * ML_KTILE;
    attn_softmax x = { { -INFINITY, -INFINITY } };
    float acc[N][4] = {};
    wide_part<D> key, value; /* codes of the next tile */
    attn_limits lim;

    if (b.p.index < 0 || b.hi < 0)
        return;
    for (int i = 0; i < 2; i++)
        wide_find_keys<false, true>(smem.tile[i], c, b, tile + i * ML_KTILE);
    __syncthreads();
    wide_fetch_rows<D>(smem.rows, c.q, c.d, c, b.p.first_row, b.head, b.row0, b.n_row);
    ml_copy_commit();
    wide_load_codes<D>(key, smem.tile[0].key, c.d, c.d, b.head, c.n_kv);
    if (!IN_KEY)
        wide_load_codes<D>(value, smem.tile[0].value, c.dv, c.e, b.head, c.n_kv);
    wide_put_codes<D>(smem.buf[0], key, attn_is_paired(c.d), c.format);
    lim = attn_limits_of(c, b.p.first_row, row, b.n_row);
    x.to_log2 = c.softcap != 0.0f ? ML_LOG2E : c.scale * ML_LOG2E;
    ml_copy_wait<0>();
    for (int n = 0; tile <= b.hi; tile += ML_KTILE, n++) {
        const bf16 *keys = smem.buf[IN_KEY ? n % 2 : 0];
        const bf16 *values = smem.buf[IN_KEY ? n % 2 : 1];
        const wide_tile &next = smem.tile[(n + 1) % 2];
        bool more = tile + ML_KTILE <= b.hi;
        float s[2][4];
        uint32_t w[4][4];

        __syncthreads(); /* the keys are there; the values before are no longer read */
        if (more)
            wide_load_codes<D>(key, next.key, c.d, c.d, b.head, c.n_kv);
        if (tile <= lim.most_pos) {
            wide_scores<D, D, D>(s, smem.rows, own, keys, part * WIDE_OWN);
            put_scores(smem.scores, s, own, part);
        }
        if (!IN_KEY)
            wide_put_codes<D>(smem.buf[1], value, false, c.format);
        __syncthreads(); /* scores and values are there; the keys of !IN_KEY are not read */
        if (!IN_KEY && more)
            wide_load_codes<D>(value, next.value, c.dv, c.e, b.head, c.n_kv);
        wide_find_keys<false, true>(smem.tile[n % 2], c, b, tile + 2 * ML_KTILE);
        if (tile <= lim.most_pos) {
            fold_tile<N>(x, w, acc, smem.scores, own, lim, tile, c);
            wide_accumulate<D, 4, N>(acc, w, values, part * N * 8);
        }
        if (more)
            wide_put_codes<D>(smem.buf[IN_KEY ? (n + 1) % 2 : 0], key, attn_is_paired(c.d),
                              c.format);
    }
    wide_put_rows<N>(x, acc, c, b, row, part);
}

template <int D, bool LIST>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c,
                   void (*kernel)(attn_call<bf16>)) {
    size_t bytes = sizeof(forward_smem<D>);
    int per_token = (c.n_head + WIDE_ROWS - 1) / WIDE_ROWS;
    dim3 grid(attn_most_pieces(c.n_token, c.n_seq, c.group, WIDE_ROWS), (unsigned)c.n_kv);

    if (LIST)
        grid.x = (unsigned)((c.n_token - c.first_token) * per_token);
    else if (c.n_token == c.n_seq && c.group <= WIDE_ROWS)
        grid.x = (unsigned)c.n_seq;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    kernel<<<grid, WIDE_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

template <int D, int E, bool IN_KEY>
static void launch_dense(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.format)
        launch<D, false>(s, c, wide_coded_forward<D, E, IN_KEY>);
    else
        launch<D, false>(s, c, wide_forward<D, E, IN_KEY, false>);
}

void ml_attn_wide(ml_cuda_stream *s, const attn_call<bf16> &c) {
    bool in_key = !c.vpage && !c.vcode;

#if ML_WGMMA
    if (in_key && s->wgmma) {
        ml_attn_mla_wgmma(s, c);
        return;
    }
#endif
    if (in_key)
        launch_dense<576, 512, true>(s, c);
    else if (c.d <= 256 && c.e <= 256)
        launch_dense<256, 256, false>(s, c);
    else
        launch_dense<512, 512, false>(s, c);
}

void ml_attn_wide_chosen(ml_cuda_stream *s, const attn_call<bf16> &c) {
#if ML_WGMMA
    if (s->wgmma) {
        ml_attn_mla_wgmma_chosen(s, c);
        return;
    }
#endif
    if (c.d <= 512)
        launch<512, true>(s, c, wide_forward<512, 512, true, true>);
    else
        launch<576, true>(s, c, wide_forward<576, 512, true, true>);
}
