/* attn_items.cuh - attention in persistent blocks (wgmma): each takes an item, rows of a KV head's
 * queries, after the other.
 *
 * All but the last warpgroup (teams) compute, 64 rows each.  The last one copies: whole tiles of keys
 * and values by tensor copies, a page at a time, and the rows of the next item while the teams
 * still have this one.  So neither waits for the other at a barrier of the block. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_ITEMS_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_ITEMS_CUH

#include "backend/cuda/attn/attn_pages.cuh"
#include "backend/cuda/attn/attn_wgmma.cuh"

enum { ATTN_COUNTERS = 256 };

/* Rows of a sequence and a KV head, and the first and the last key of all of them. */
struct attn_item {
    ml_piece p;
    int head, row0, lo, hi;
};

/* TEAMS * 64 rows of KINDS matrices (q; in backward dO, too), twice, and a ring of key tiles. */
template <int D, int TEAMS_, int KINDS_, int STAGES_> struct attn_items {
    static const int TEAMS = TEAMS_, KINDS = KINDS_, STAGES = STAGES_;
    static const int ROWS = TEAMS * ATTN_ROWS;
    static const int THREADS = TEAMS * ML_WARPGROUP + ATTN_COPIERS;
    bf16 rows[2][KINDS][TEAMS][ATTN_ROWS * D];
    attn_stage<D> stage[STAGES];
    attn_item item[2]; /* p.index -1: there are no more */
    ml_barrier rows_full[2], rows_empty[2], full[STAGES], empty[STAGES];

    /* Where tile n (of all items) is in the ring, and which phase of its mbarriers that is. */
    __device__ static int at(int n) {
        return n % STAGES;
    }
    __device__ static unsigned phase(int n) {
        return (unsigned)(n / STAGES) & 1;
    }
};

/* Items that blocks have taken, of each stream.  A launch begins and ends with zero. */
__device__ static unsigned attn_taken[ATTN_COUNTERS];

template <class S> __device__ static void attn_init_items(S &smem) {
    const unsigned warps = S::TEAMS * ML_WARPGROUP / 32;

    for (int i = 0; i < S::STAGES; i++) {
        ml_barrier_init(&smem.full[i], ATTN_COPIERS);
        ml_barrier_init(&smem.empty[i], warps);
    }
    for (int i = 0; i < 2; i++) {
        ml_barrier_init(&smem.rows_full[i], ATTN_COPIERS);
        ml_barrier_init(&smem.rows_empty[i], warps);
    }
    ml_barrier_init_end();
}

/* ---- the copying warpgroup ---- */

/* Later rows have more keys: they come first.  One warp calls it. */
__device__ static void attn_take_item(attn_item *to, const attn_call<bf16> &c,
                                      unsigned *counter, unsigned n_item, int rows) {
    unsigned at;

    do {
        at = threadIdx.x % 32 == 0 ? atomicAdd(counter, 1) : 0;
        at = __shfl_sync(0xffffffffu, at, 0);
        if (at < n_item)
            ml_find_piece_warp(&to->p, c.seq_start, c.n_seq, c.group, rows,
                               (int)(n_item - 1 - at) / c.n_kv);
    } while (at < n_item && to->p.index < 0);
    if (threadIdx.x % 32 != 0)
        return;
    if (at < n_item) {
        int n_row = to->p.rows * c.group, row0 = to->p.index * rows;
        int last = row0 + rows < n_row ? row0 + rows - 1 : n_row - 1;
        to->head = (int)(n_item - 1 - at) % c.n_kv;
        to->row0 = row0;
        to->lo = attn_first_key(c, c.pos[to->p.first_row + attn_token(c, row0)]);
        to->hi = c.pos[to->p.first_row + attn_token(c, last)];
    } else {
        to->p.index = -1;
        if (at == n_item + gridDim.x - 1) /* no block takes one after this */
            *counter = 0;
    }
}

__device__ static inline void attn_sync_copiers(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)ATTN_COPIERS) : "memory");
}

/* Waits for the thread's own copies and makes them visible to wgmma. */
__device__ static inline void attn_finish_copies(void) {
    ml_copy_commit();
    ml_copy_wait<0>();
    ml_wgmma_publish();
}

template <int D, int TEAMS>
__device__ static void attn_copy_rows(bf16 (&to)[TEAMS][ATTN_ROWS * D], const bf16 *from,
                                      const attn_call<bf16> &c, const attn_item &it) {
    attn_share<D, ATTN_COPIERS> own = attn_own_share<D, ATTN_COPIERS>(c.d);

    from += attn_rows_base(own, c, it.p.first_row, it.head);
#pragma unroll 1
    for (int i = 0; i < TEAMS; i++)
        attn_stage_rows(to[i], from, own, c, it.row0 + i * ATTN_ROWS, it.p.rows * c.group);
}

/* A warp's page of a tile: 16 keys and their values. */
template <int D>
__device__ static void attn_copy_page(attn_stage<D> &to, const attn_page_maps &maps,
                                      int page, const attn_call<bf16> &c, int head,
                                      ml_barrier *full) {
    int row = (page * c.n_kv + head) * ML_PAGE;
    int at = (int)threadIdx.x / 32 % ATTN_TILE_PAGES * ML_PAGE * 64;

    ml_barrier_expect_more(full, sizeof(attn_stage<D>) / ATTN_TILE_PAGES);
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        ml_tensor_copy(to.keys + i * ML_PANEL + at, &maps.keys, i * 64, row, 0, full);
        ml_tensor_copy(to.values + i * ML_PANEL + at, &maps.values, i * 64, row, 0, full);
    }
}

/* A tile at the item's first or last key: those beyond become zero. */
template <int D>
__device__ static void attn_copy_part(attn_stage<D> &to, const attn_call<bf16> &c,
                                      const int32_t *page, int tile, const attn_item &it) {
    attn_share<D, ATTN_COPIERS> own = attn_own_share<D, ATTN_COPIERS>(c.d);
    int32_t id[attn_share<D, ATTN_COPIERS>::n];

    attn_stage_pages(id, own, page, tile, it.lo, it.hi);
    attn_stage_keys(to.keys, to.values, own, id, c, it.head);
    attn_finish_copies();
}

/* Returns the number of all tiles so far. */
template <int D, class S>
__device__ static int attn_copy_tiles(S &smem, const attn_call<bf16> &c,
                                      const attn_page_maps &maps, const attn_item &it,
                                      int n) {
    const int32_t *page = c.page + c.page_start[it.p.owner];
    int own = (int)threadIdx.x / 32 % ATTN_TILE_PAGES; /* the warp's page of a tile */

#pragma unroll 1
    for (int tile = it.lo / ML_KTILE * ML_KTILE; tile <= it.hi; tile += ML_KTILE, n++) {
        attn_stage<D> &to = smem.stage[S::at(n)];
        ml_barrier *full = &smem.full[S::at(n)];
        bool whole = tile >= it.lo && tile + ML_KTILE - 1 <= it.hi;
        int id = whole ? page[tile / ML_PAGE + own] : 0;
        if (n >= S::STAGES)
            ml_barrier_wait(&smem.empty[S::at(n)], S::phase(n) ^ 1);
        if (!whole)
            attn_copy_part<D>(to, c, page, tile, it);
        else if (threadIdx.x % 32 == 0)
            attn_copy_page<D>(to, maps, id, c, it.head, full);
        ml_barrier_arrive(full);
    }
    return n;
}

/* What the copying warpgroup does; rows of c.q and, if there are two kinds, of c.dout. */
template <int D, class S>
__device__ static void attn_copy_items(S &smem, const attn_call<bf16> &c,
                                       const attn_page_maps &maps, unsigned *counter,
                                       unsigned n_item) {
    for (int i = 0, n = 0;; i++) {
        attn_item *it = &smem.item[i % 2];
        if (i >= 2)
            ml_barrier_wait(&smem.rows_empty[i % 2], (unsigned)(i / 2 - 1) & 1);
        if (threadIdx.x % ATTN_COPIERS < 32)
            attn_take_item(it, c, counter, n_item, S::ROWS);
        attn_sync_copiers();
        for (int k = 0; it->p.index >= 0 && k < S::KINDS; k++)
            attn_copy_rows<D>(smem.rows[i % 2][k], k == 0 ? c.q : c.dout, c, *it);
        attn_finish_copies();
        ml_barrier_arrive(&smem.rows_full[i % 2]);
        if (it->p.index < 0)
            return;
        n = attn_copy_tiles<D>(smem, c, maps, *it, n);
    }
}

/* ---- the teams ---- */

/* Waits for item i and returns it; NULL: there are no more. */
template <class S> __device__ static const attn_item *attn_await_item(S &smem, int i) {
    ml_barrier_wait(&smem.rows_full[i % 2], (unsigned)(i / 2) & 1);
    return smem.item[i % 2].p.index < 0 ? NULL : &smem.item[i % 2];
}

/* This warp no longer reads what the mbarrier stands for. */
__device__ static inline void attn_release(ml_barrier *empty) {
    if (threadIdx.x % 32 == 0)
        ml_barrier_arrive(empty);
}

/* ---- the kernel ---- */

/* What a block does: `compute` is what the teams do, with all items.  COPIER and TEAM are the registers of their
 * threads, of all threads together the 65,536 of an SM. */
template <int D, class S, int COPIER, int TEAM, class F>
__device__ static inline void attn_run_items(const attn_call<bf16> &c,
                                             const attn_page_maps &maps, unsigned counter,
                                             unsigned n_item, F compute) {
    S &smem = *(S *)attn_smem;

    if (threadIdx.x == 0)
        attn_init_items(smem);
    __syncthreads();
    if (threadIdx.x >= S::TEAMS * ML_WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPIER));
        attn_copy_items<D>(smem, c, maps, &attn_taken[counter], n_item);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TEAM));
        compute(smem);
    }
}

/* ---- launching ---- */

/* S: the kernel's shared memory. */
template <class S, class K>
static void attn_launch_items(ml_cuda_stream *s, K *kernel, const attn_call<bf16> &c,
                              const char *doing) {
    unsigned n_item =
        attn_most_pieces(c.n_token, c.n_seq, c.group, S::ROWS) * (unsigned)c.n_kv;
    unsigned blocks = n_item < s->sms ? n_item : s->sms;
    attn_page_maps maps;

    ml_cuda_note(s, attn_map_pages(&maps.keys, c.kpage, c.d), doing);
    ml_cuda_note(s, attn_map_pages(&maps.values, c.vpage, c.dv), doing);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(S)),
                 doing);
    kernel<<<blocks, S::THREADS, sizeof(S), s->stream>>>(c, maps, s->number % ATTN_COUNTERS,
                                                         n_item);
    ml_cuda_launched(s, doing);
}

#endif
