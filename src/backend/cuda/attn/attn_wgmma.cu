/* attn_wgmma.cu - attention forward with wgmma for many rows, FlashAttention-3 style (Shah
 * et al. 2024).
 *
 * The bits are those of attn_mma.cu: the same key tiles in the same order, the same
 * online softmax, products that sum alike.  Q K' of the next tile is issued before P V
 * of this one, and the softmax of one warpgroup overlaps the products of the others.
 * There are no producer warps: the first two warpgroups also issue the copies
 * (cp.async). */
#include "backend/cuda/attn/attn_fold.cuh"
#include "backend/cuda/attn/attn_wgmma.cuh"

enum { STAGES = 4, TEAMS = 3, ROWS = TEAMS * ATTN_ROWS };

template <int D> struct forward_smem {
    bf16 q[TEAMS][ATTN_ROWS * D];
    attn_stage<D> stage[STAGES];
};

template <int D, bool CAP>
__global__ void __launch_bounds__(TEAMS *ML_WARPGROUP, 1) wgmma_forward(attn_call<bf16> c) {
    forward_smem<D> &smem = *(forward_smem<D> *)attn_smem;
    int at = (int)(gridDim.x - 1 - blockIdx.x), head = at % c.n_kv;
    ml_piece p =
        attn_find_piece(c.seq_start, c.n_seq, c.n_token, c.group, ROWS, at / c.n_kv);
    attn_share<D> own = attn_own_share<D>(c.d);
    int n_row = p.rows * c.group, row0 = p.index * ROWS, tile, n = 0;
    int row = row0 + (int)threadIdx.x / 32 * 16; /* the warp's first */
    uint32_t q = ml_panel(smem.q[attn_team()]), w[4][4];
    attn_tiles<D> tiles;
    attn_softmax x = { { -INFINITY, -INFINITY } };
    attn_limits lim;
    float first[8][4], acc[D / 8][4], keep[2];

    if (p.index < 0)
        return;
    tiles = attn_open_tiles<D>(own, c, p, row0, ROWS);
    tile = tiles.next;
    for (int i = 0; threadIdx.x < ATTN_FETCHERS && i < TEAMS; i++)
        attn_stage_rows<D>(smem.q[i], c.q + attn_rows_base<D>(own, c, p.first_row, head),
                           own, c, row0 + i * ATTN_ROWS, n_row);
    for (int i = 0; i < STAGES - 1; i++)
        attn_fetch_tile(smem.stage[i], tiles, c, head);
    lim = attn_limits_of(c, p.first_row, row, n_row);
    x.to_log2 = CAP ? ML_LOG2E : c.scale * ML_LOG2E;
    attn_await_copies<1>(); /* the first two tiles arrived */
    ml_wgmma_fence();
    attn_start_scores<D>(first, q, ml_panel(smem.stage[0].keys));
    ml_wgmma_wait<0>(first);
    if (CAP)
        attn_cap(first, c);
    attn_fold(x, first, keep, lim, tile);
    attn_round<8>(w, first);
    for (; tile + ML_KTILE <= tiles.hi; n++) {
        float s[8][4];
        ml_wgmma_fence(w);
        attn_start_scores<D>(s, q, ml_panel(smem.stage[(n + 1) % STAGES].keys));
        attn_start_sums<D>(acc, w, ml_panel(smem.stage[n % STAGES].values), n != 0);
        attn_await_copies<0>(); /* tile n + 2 arrived, stage n - 1 is free */
        attn_fetch_tile(smem.stage[(n + 3) % STAGES], tiles, c, head);
        ml_wgmma_wait<1>(s);
        tile += ML_KTILE;
        if (CAP)
            attn_cap(s, c);
        attn_fold(x, s, keep, lim, tile);
        attn_finish(x.l[0]);
        attn_finish(x.l[1]);
        for (int h = 0; h < D / 64; h++)
            ml_wgmma_wait<0>(acc + 8 * h);
        attn_rescale<D>(acc, keep);
        attn_round<8>(w, s);
    }
    ml_copy_wait<0>();
    ml_wgmma_fence(w);
    attn_start_sums<D>(acc, w, ml_panel(smem.stage[n % STAGES].values), n != 0);
    for (int h = 0; h < D / 64; h++)
        ml_wgmma_wait<0>(acc + 8 * h);
    attn_put_rows<D>(x, acc, c, p, head, row, n_row);
}

template <int D, bool CAP> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t bytes = sizeof(forward_smem<D>);
    unsigned blocks =
        attn_most_pieces(c.n_token, c.n_seq, c.group, ROWS) * (unsigned)c.n_kv;

    ml_cuda_note(s,
                 cudaFuncSetAttribute(wgmma_forward<D, CAP>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention");
    wgmma_forward<D, CAP><<<blocks, TEAMS * ML_WARPGROUP, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

void ml_attn_wgmma(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64 && c.softcap == 0.0f)
        launch<64, false>(s, c);
    else if (c.d <= 64)
        launch<64, true>(s, c);
    else if (c.softcap == 0.0f)
        launch<128, false>(s, c);
    else
        launch<128, true>(s, c);
}
