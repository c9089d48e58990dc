/* attn_wgmma_back.cu - attention backward with wgmma, without atomics.
 *
 * Two kernels, as in attn_mma_back.cu: one loops over keys for query rows (dq), the other
 * over query rows for keys (dk, dv); both recompute the scores.  Every gradient has one
 * writer and one order of sums.  A block is two warpgroups with 64 rows each of its tile;
 * the products of a step are issued before the arithmetic between them, and overlap it.
 *
 * A plan with a backward has all keys of a sequence in its batch, or those behind a prefix
 * that is a sequence of its batch, or those of all ranks (attn_readers). */
#include "backend/cuda/attn/attn_items.cuh"
#include "backend/cuda/attn/attn_wgmma_back.cuh"

enum {
    STAGES = 3,
    TEAMS = 2, /* more have no registers for their accumulators */
    OWN = TEAMS * ATTN_ROWS,
    OWN_THREADS = TEAMS * ML_WARPGROUP
};

/* ---- dk, dv ---- */

template <int D> struct key_smem {
    bf16 keys[TEAMS][ATTN_ROWS * D], values[TEAMS][ATTN_ROWS * D];
    struct {
        bf16 q[ATTN_ROWS * D], dout[ATTN_ROWS * D];
    } stage[STAGES];
    float number[STAGES][2 * ATTN_ROWS]; /* shift (LSE), then delta */
};

/* A thread's sources of query rows: pieces of q and dO, and one row's shift or delta. */
struct row_source {
    const bf16 *q, *dout;
    const float *number; /* shift or delta of the first row */
};

template <int D>
__device__ static inline row_source open_rows(const attn_share<D, OWN_THREADS> &own,
                                              const attn_call<bf16> &c, int first_row,
                                              int head) {
    row_source from;
    from.q = c.q + attn_rows_base(own, c, first_row, head);
    from.dout = c.dout + attn_rows_base(own, c, first_row, head);
    from.number = (threadIdx.x < ATTN_ROWS ? c.shift : c.delta) +
                  (int64_t)first_row * c.n_head + head * c.group;
    return from;
}

/* Starts the copies of query rows `row` .. to stage n. */
template <int D>
__device__ static inline void
fetch_rows(key_smem<D> &smem, int n, const attn_share<D, OWN_THREADS> &own,
           const row_source &from, const attn_call<bf16> &c, int row, int n_row) {
    int stage = n % STAGES, i = (int)threadIdx.x % ATTN_ROWS, at = row + i;

    attn_stage_rows(smem.stage[stage].q, from.q, own, c, row, n_row);
    attn_stage_rows(smem.stage[stage].dout, from.dout, own, c, row, n_row);
    if (threadIdx.x < 2 * ATTN_ROWS)
        ml_copy_async4(smem.number[stage] + threadIdx.x,
                       from.number + (int64_t)attn_token(c, at) * (c.n_head - c.group) + at,
                       at < n_row);
    ml_copy_commit();
}

/* Starts the copies of the block's keys and values, from key `tile` on. */
template <int D>
__device__ static inline void
fetch_keys(key_smem<D> &smem, const attn_share<D, OWN_THREADS> &own,
           const attn_call<bf16> &c, const ml_piece &p, int head, int base, int tile) {
    for (int i = 0; i < TEAMS; i++) {
        int32_t id[attn_share<D, OWN_THREADS>::n];
        attn_stage_pages(id, own, c.keys.page + c.keys.page_start[p.owner],
                         base + tile + i * ATTN_ROWS, base, base + p.rows - 1);
        attn_stage_keys(smem.keys[i], smem.values[i], own, id, c, head);
    }
}

/* Masks the scores of 64 keys from `key` on with rows `row` .. that do not attend to
 * them; keys are the rows of s. */
__device__ static inline void hide_rows(float (&s)[8][4], const attn_call<bf16> &c,
                                        const attn_reads &by, int key, int row, int n_row) {
    int lane = (int)threadIdx.x % 32;
    int last = row + ATTN_ROWS < n_row ? row + ATTN_ROWS - 1 : n_row - 1;

    if (attn_last_read(c, by, attn_token(c, row)) >= key + ATTN_ROWS - 1 &&
        attn_first_read(c, by, attn_token(c, last)) <= key && !(c.prefix && c.window))
        return;
    key += (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int at = row + j * 8 + lane % 4 * 2 + k, reader = attn_token(c, at);
            int upto = at < n_row ? attn_last_read(c, by, reader) : reader;
            int first = at < n_row ? attn_first_read(c, by, reader) : 0;
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (key + 8 * r > upto || key + 8 * r < first)
                    s[j][k + 2 * r] = -INFINITY;
        }
}

template <int D, bool CAP, bool PIECES>
__global__ void __launch_bounds__(OWN_THREADS, 1) back_keys(attn_call<bf16> c) {
    typedef typename attn_key_grad<PIECES>::type grad;
    key_smem<D> &smem = *(key_smem<D> *)attn_smem;
    int head = (int)blockIdx.x % c.n_kv, team = attn_team();
    ml_piece p = attn_find_piece(c.keys.seq_start, c.keys.n_seq, c.keys.n, 1, OWN,
                                 (int)blockIdx.x / c.n_kv);
    attn_share<D, OWN_THREADS> own = attn_own_share<D, OWN_THREADS>(c.d);
    int tile = p.index * OWN, key = tile + team * ATTN_ROWS;
    uint32_t keys = ml_panel(smem.keys[team]), values = ml_panel(smem.values[team]);
    float to_log2 = CAP ? ML_LOG2E : c.scale * ML_LOG2E;
    float dk[D / 8][4], dv[D / 8][4];
    row_source from;
    attn_reads by;
    int row, end, n_row, base;

    if (p.index < 0)
        return;
    by = attn_readers(c, p.owner, p.first_row, PIECES);
    from = open_rows<D>(own, c, by.first, head);
    base = attn_base(c, p.first_row);
    n_row = by.n * c.group;
    row = attn_first_reader(c, by, tile) * c.group / ATTN_ROWS * ATTN_ROWS;
    end = attn_end_reader(c, by, tile + OWN - 1, p.rows) * c.group;
    if (PIECES && row >= end) /* ml_attn_clear_keys has written zeros */
        return;
    fetch_keys<D>(smem, own, c, p, head, base, tile);
    fetch_rows<D>(smem, 0, own, from, c, row, n_row);
    fetch_rows<D>(smem, 1, own, from, c, row + ATTN_ROWS, n_row);
    attn_await_copies<1>();
    for (int n = 0; row < end; n++, row += ATTN_ROWS) {
        int now = n % STAGES;
        float s[8][4], dp[8][4];
        uint32_t w[4][4], dw[4][4];
        ml_wgmma_fence();
        attn_start_scores<D>(s, keys, ml_panel(smem.stage[now].q));
        attn_start_scores<D>(dp, values, ml_panel(smem.stage[now].dout));
        ml_wgmma_wait<1>(s); /* and the accumulations of the step before */
        if (CAP)
            attn_cap(s, c);
        hide_rows(s, c, by, key, row, n_row);
        attn_weigh_columns<CAP>(w, s, smem.number[now], to_log2, c.softcap);
        ml_wgmma_fence(w);
        attn_start_sums<D>(dv, w, ml_panel(smem.stage[now].dout), n != 0);
        attn_await_copies<0>(); /* the next rows arrived; the stage before is free */
        fetch_rows<D>(smem, n + 2, own, from, c, row + 2 * ATTN_ROWS, n_row);
        /* For dv, too: ptxas gives w and dw the same registers, and would insert a wait at
         * every product. */
        ml_wgmma_wait<0>(dp);
        attn_slope_columns(dw, s, dp, smem.number[now] + ATTN_ROWS);
        ml_wgmma_fence(dw);
        attn_start_sums<D>(dk, dw, ml_panel(smem.stage[now].q), n != 0);
    }
    ml_copy_wait<0>();
    for (int h = 0; h < D / 64; h++) {
        ml_wgmma_wait<0>(dk + 8 * h);
        ml_wgmma_wait<0>(dv + 8 * h);
    }
    attn_put_keys<D>((grad *)c.dk, dk, c.scale, c, p, head, key, c.add_k);
    attn_put_keys<D>((grad *)c.dv_out, dv, 1.0f, c, p, head, key, c.add_v);
}

/* ---- dq ---- */

/* q and dO stay in shared memory as A operands.  With A fragments in registers dq takes
 * 5 % less time, but ptxas 13.0 let w overwrite them where D is 64. */
template <int D> using query_smem = attn_items<D, TEAMS, 2, 3>;

enum { COPIER_REGISTERS = 40, TEAM_REGISTERS = 232 };

/* LSE and delta of a lane's two rows; `row` is the warp's first. */
struct lane_numbers {
    float shift[2], delta[2];
};

__device__ static lane_numbers numbers_of(const attn_call<bf16> &c, int first_token,
                                          int head, int row, int n_row) {
    lane_numbers x = {};
    for (int r = 0; r < 2; r++) {
        int at_row = row + (int)threadIdx.x % 32 / 4 + 8 * r;
        int64_t at = attn_head_at(c, first_token, head, at_row);
        if (at_row < n_row) {
            x.shift[r] = c.shift[at];
            x.delta[r] = c.delta[at];
        }
    }
    return x;
}

template <int D>
__device__ static void put_queries(const float (&dq)[D / 8][4], const attn_call<bf16> &c,
                                   const ml_piece &p, int head, int row, int n_row) {
    for (int r = 0; r < 2; r++) {
        int at_row = row + (int)threadIdx.x % 32 / 4 + 8 * r;
        int64_t to = attn_head_at(c, p.first_row, head, at_row) * c.d;
#pragma unroll
        for (int j = 0; at_row < n_row && j < D / 8; j++)
            attn_put2(c.dq + to, c.d, j * 8 + (int)threadIdx.x % 4 * 2,
                      dq[j][2 * r] * c.scale, dq[j][2 * r + 1] * c.scale, c.add_q);
    }
}

/* Returns the number of all tiles so far. */
template <int D, bool CAP>
__device__ static int back_item(query_smem<D> &smem, const attn_call<bf16> &c,
                                const attn_item &it, uint32_t q, uint32_t dout, int n) {
    typedef query_smem<D> S;
    int n_row = it.p.rows * c.group, row = it.row0 + (int)threadIdx.x / 32 * 16;
    float to_log2 = CAP ? ML_LOG2E : c.scale * ML_LOG2E, dq[D / 8][4];
    attn_limits lim = attn_limits_of(c, it.p.first_row, row, n_row);
    lane_numbers x = numbers_of(c, it.p.first_row, it.head, row, n_row);
    bool first = true;

    for (int tile = it.lo / ML_KTILE * ML_KTILE; tile <= it.hi; tile += ML_KTILE, n++) {
        const attn_stage<D> &now = smem.stage[S::at(n)];
        float s[8][4], dp[8][4];
        uint32_t w[4][4];
        ml_barrier_wait(&smem.full[S::at(n)], S::phase(n));
        ml_wgmma_fence();
        attn_start_scores<D>(s, q, ml_panel(now.keys));
        attn_start_scores<D>(dp, dout, ml_panel(now.values));
        ml_wgmma_wait<1>(s); /* and the accumulations of the step before */
        if (!first)
            attn_release(&smem.empty[S::at(n - 1)]);
        if (CAP)
            attn_cap(s, c);
        attn_hide(s, lim, tile);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                attn_weigh<CAP>(s[j][k], x.shift[k / 2], to_log2, c.softcap);
        attn_finish(s[3][0] + s[7][1]);
        attn_finish(s[3][2] + s[7][3]);
        ml_wgmma_wait<0>(dp);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[j][k] *= dp[j][k] - x.delta[k / 2];
        attn_round<8>(w, s);
        ml_wgmma_fence(w);
        attn_start_sums<D>(dq, w, ml_panel(now.keys), !first);
        first = false;
    }
    for (int h = 0; h < D / 64; h++)
        ml_wgmma_wait<0>(dq + 8 * h);
    attn_release(&smem.empty[S::at(n - 1)]);
    put_queries<D>(dq, c, it.p, it.head, row, n_row);
    return n;
}

template <int D, bool CAP>
__device__ static void back_items(query_smem<D> &smem, const attn_call<bf16> &c) {
    int team = attn_team();
    const attn_item *it;

    for (int i = 0, n = 0; (it = attn_await_item(smem, i)) != NULL; i++) {
        n = back_item<D, CAP>(smem, c, *it, ml_panel(smem.rows[i % 2][0][team]),
                              ml_panel(smem.rows[i % 2][1][team]), n);
        attn_release(&smem.rows_empty[i % 2]);
    }
}

template <int D, bool CAP>
__global__ void __launch_bounds__(query_smem<D>::THREADS, 1)
    back_queries(attn_call<bf16> c, const __grid_constant__ attn_page_maps maps,
                 unsigned counter, unsigned n_item) {
    attn_run_items<D, query_smem<D>, COPIER_REGISTERS, TEAM_REGISTERS>(
        c, maps, counter, n_item,
        [&](query_smem<D> &smem) { back_items<D, CAP>(smem, c); });
}

template <class K>
static void launch(ml_cuda_stream *s, K *kernel, unsigned blocks, size_t bytes,
                   const attn_call<bf16> &c) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention backward");
    kernel<<<blocks, OWN_THREADS, bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

template <int D, bool CAP>
static void launch_both(ml_cuda_stream *s, const attn_call<bf16> &c) {
    unsigned heads = (unsigned)c.n_kv;
    if (c.dk || c.dv_out)
        launch(s, c.keys.piece ? back_keys<D, CAP, true> : back_keys<D, CAP, false>,
               attn_most_pieces(c.keys.n, c.keys.n_seq, 1, OWN) * heads,
               sizeof(key_smem<D>), c);
    if (c.dq)
        attn_launch_items<query_smem<D>>(s, back_queries<D, CAP>, c, "attention backward");
}

void ml_attn_wgmma_back(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.d <= 64 && c.softcap == 0.0f)
        launch_both<64, false>(s, c);
    else if (c.d <= 64)
        launch_both<64, true>(s, c);
    else if (c.softcap == 0.0f)
        launch_both<128, false>(s, c);
    else
        launch_both<128, true>(s, c);
}
