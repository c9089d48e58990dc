/* attn_wgmma.cu - attention forward with wgmma for many rows, FlashAttention-3 style (Shah
 * et al. 2024).
 *
 * The bits are those of attn_mma.cu: the same key tiles in the same order, the same
 * online softmax, products that sum alike.  Q K' of the next tile is issued before P V
 * of this one, and the softmax of one warpgroup overlaps the products of the others. */
#include "backend/cuda/attn/attn_fold.cuh"
#include "backend/cuda/attn/attn_items.cuh"

enum { COPIER_REGISTERS = 56, TEAM_REGISTERS = 152 };

template <int D> using forward_smem = attn_items<D, 3, 1, 4>;

/* Returns the number of all tiles so far. */
template <int D, bool CAP>
__device__ static int attend(forward_smem<D> &smem, const attn_call<bf16> &c,
                             const attn_item &it, uint32_t q, int n) {
    typedef forward_smem<D> S;
    int tile = it.lo / ML_KTILE * ML_KTILE, hi = it.hi, n_row = it.p.rows * c.group;
    int row = it.row0 + (int)threadIdx.x / 32 * 16; /* the warp's first */
    bool first = true;
    uint32_t w[4][4];
    attn_softmax x = { { -INFINITY, -INFINITY } };
    attn_limits lim;
    float start[8][4], acc[D / 8][4], keep[2];

    x.to_log2 = CAP ? ML_LOG2E : c.scale * ML_LOG2E;
    ml_barrier_wait(&smem.full[S::at(n)], S::phase(n));
    ml_wgmma_fence();
    attn_start_scores<D>(start, q, ml_panel(smem.stage[S::at(n)].keys));
    lim = attn_limits_of(c, it.p.first_row, row, n_row);
    ml_wgmma_wait<0>(start);
    if (CAP)
        attn_cap(start, c);
    attn_fold(x, start, keep, lim, tile);
    attn_round<8>(w, start);
    for (; tile + ML_KTILE <= hi; n++) {
        float s[8][4];
        ml_barrier_wait(&smem.full[S::at(n + 1)], S::phase(n + 1));
        ml_wgmma_fence(w);
        attn_start_scores<D>(s, q, ml_panel(smem.stage[S::at(n + 1)].keys));
        attn_start_sums<D>(acc, w, ml_panel(smem.stage[S::at(n)].values), !first);
        first = false;
        ml_wgmma_wait<1>(s);
        tile += ML_KTILE;
        if (CAP)
            attn_cap(s, c);
        attn_fold(x, s, keep, lim, tile);
        attn_finish(x.l[0]);
        attn_finish(x.l[1]);
        for (int h = 0; h < D / 64; h++)
            ml_wgmma_wait<0>(acc + 8 * h);
        attn_release(&smem.empty[S::at(n)]);
        if (__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f))
            attn_rescale<D>(acc, keep);
        attn_round<8>(w, s);
    }
    ml_wgmma_fence(w);
    attn_start_sums<D>(acc, w, ml_panel(smem.stage[S::at(n)].values), !first);
    for (int h = 0; h < D / 64; h++)
        ml_wgmma_wait<0>(acc + 8 * h);
    attn_release(&smem.empty[S::at(n)]);
    attn_put_rows<D>(x, acc, c, it.p, it.head, row, n_row);
    return n + 1;
}

template <int D, bool CAP>
__device__ static void attend_items(forward_smem<D> &smem, const attn_call<bf16> &c) {
    const attn_item *it;

    for (int i = 0, n = 0; (it = attn_await_item(smem, i)) != NULL; i++) {
        n = attend<D, CAP>(smem, c, *it, ml_panel(smem.rows[i % 2][0][attn_team()]), n);
        attn_release(&smem.rows_empty[i % 2]);
    }
}

template <int D, bool CAP>
__global__ void __launch_bounds__(forward_smem<D>::THREADS, 1)
    wgmma_forward(attn_call<bf16> c, const __grid_constant__ attn_page_maps maps,
                  unsigned counter, unsigned n_item) {
    attn_run_items<D, forward_smem<D>, COPIER_REGISTERS, TEAM_REGISTERS>(
        c, maps, counter, n_item,
        [&](forward_smem<D> &smem) { attend_items<D, CAP>(smem, c); });
}

template <int D, bool CAP> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    attn_launch_items<forward_smem<D>>(s, wgmma_forward<D, CAP>, c, "attention");
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
