/* attn_once_wgmma_back.cu - attention backward in one pass over the scores, with wgmma: heads of 128.
 *
 * A block takes 128 keys of a KV head after the others, and goes through the query rows that attend to
 * them, 64 at a time: scores and dP once, then the products for dv, dk and dq, as in FlashAttention-2 and
 * 3 (Dao 2023; Shah et al. 2024).  The two kernels of attn_wgmma_back.cu compute scores and dP twice.
 *
 * dq sums over the keys of several blocks.  They add their parts to f32 sums in memory one after the other,
 * from the first keys to the last, as a semaphore for each tile of rows says (FlashAttention's deterministic
 * backward has such semaphores): the order of sums is fixed.  The first block stores its part, the last one
 * adds the sums to its part and writes dq.  Blocks take keys in ascending order and go through the rows from
 * the last to the first, so that a block waits for the one before it for about one step.
 *
 * Two warpgroups (teams) have 64 of the keys each; for dq each has half of the columns.  In the third
 * warpgroup one warp copies to shared memory, and two add the parts of dq, every second tile each. */
#include <limits.h>

#include "backend/cuda/attn/attn_items.cuh"
#include "backend/cuda/attn/attn_wgmma_back.cuh"

enum {
    D = 128,
    STAGES = 2, /* of query rows, of dS, and of parts of dq */
    TEAMS = 2,
    OWN = TEAMS * ATTN_ROWS,
    TEAM_THREADS = TEAMS * ML_WARPGROUP,
    TEAM_WARPS = TEAM_THREADS / 32,
    ADDERS = STAGES, /* warps */
    THREADS = TEAM_THREADS + ML_WARPGROUP,
    HELPER_REGISTERS =
        24, /* 128 threads; with the teams', as many as 384 threads of 168 have */
    TEAM_REGISTERS = 240,
    PART = ATTN_ROWS * D /* numbers of a part of dq */
};

/* Keys `tile` .. of a sequence and a KV head, and the tiles of query rows that attend to them. */
struct key_item {
    ml_piece p;    /* index -1: there are no more */
    attn_reads by; /* the sequence's rows of the batch */
    int head, tile, lo, hi, n_row;
};

struct once_smem {
    bf16 keys[TEAMS][ATTN_ROWS * D], values[TEAMS][ATTN_ROWS * D];
    struct {
        bf16 q[ATTN_ROWS * D], dout[ATTN_ROWS * D];
    } stage[STAGES];
    bf16 ds[STAGES][TEAMS][ML_PANEL];    /* dS, a row per key */
    float part[STAGES][PART];            /* of dq: see part_at */
    float number[STAGES][2 * ATTN_ROWS]; /* shift (LSE), then delta */
    key_item item[2];
    ml_barrier item_full[2], item_empty[2], keys_full, keys_empty;
    ml_barrier full[STAGES], empty[STAGES]; /* of rows */
    ml_barrier open[STAGES], done[STAGES];  /* of parts: teams may use it; have used it */
};

struct once_maps {
    attn_page_maps pages;
    CUtensorMap q, dout;
};

/* Tile n of all of a block is in stage n % STAGES, whose mbarriers then have this parity. */
__device__ static inline unsigned phase(int n) {
    return (unsigned)(n / STAGES) & 1;
}

/* ---- tiles of dq ---- */

/* The first and the last tile of keys that a tile of query rows attends to. */
__device__ static inline int first_keys(const attn_call<bf16> &c, const key_item &it,
                                        int at) {
    return attn_first_read(c, it.by, attn_token(c, at * ATTN_ROWS)) / OWN;
}

__device__ static inline int last_keys(const attn_call<bf16> &c, const key_item &it,
                                       int at) {
    int last = at * ATTN_ROWS + ATTN_ROWS - 1;
    return attn_last_read(c, it.by, attn_token(c, last < it.n_row ? last : it.n_row - 1)) /
           OWN;
}

/* A tile's semaphore, and its sums in memory: rows of D numbers, head after head. */
__device__ static inline unsigned *semaphore_of(const attn_call<bf16> &c,
                                                const key_item &it, int at) {
    return c.dq_semaphore + (it.by.first * c.group / ATTN_ROWS + it.p.owner + at) * c.n_kv +
           it.head;
}

__device__ static inline float *sums_of(const attn_call<bf16> &c, const key_item &it,
                                        int at) {
    int64_t before = (int64_t)it.head * c.n_token + it.by.first;
    return c.dq_sums + (before * c.group + at * ATTN_ROWS) * D;
}

__device__ static inline unsigned sums_bytes(const key_item &it, int at) {
    int rows = it.n_row - at * ATTN_ROWS;
    return (unsigned)(rows < ATTN_ROWS ? rows : ATTN_ROWS) * D * (unsigned)sizeof(float);
}

/* Waits until n_before blocks have added their parts. */
__device__ static void await_semaphore(const unsigned *semaphore, unsigned n_before) {
#if __CUDA_ARCH__ >= 900
    unsigned now;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(semaphore)
                     : "memory");
    while (now < n_before);
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/* Adds a part, or stores the first one, and signals that it is there. */
__device__ static void add_part(float *to, const float *part, unsigned bytes,
                                unsigned *semaphore, unsigned n_before) {
    if (n_before == 0)
        ml_bulk_store(to, part, bytes);
    else
        ml_bulk_add(to, part, bytes);
    ml_tensor_commit();
    ml_tensor_wait();
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;\n"
                 "st.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore),
                 "r"(n_before + 1)
                 : "memory");
#endif
}

/* The part of a tile: it is added to the sums; the last block gets these instead, and adds them to its part. */
__device__ static void pass_part(once_smem &smem, const attn_call<bf16> &c,
                                 const key_item &it, int at, int n) {
    const int stage = n % STAGES;
    const unsigned n_before = (unsigned)(it.p.index - first_keys(c, it, at));
    const unsigned bytes = sums_bytes(it, at);
    const bool last = it.p.index == last_keys(c, it, at);
    unsigned *semaphore = semaphore_of(c, it, at);
    float *sums = sums_of(c, it, at);

    if (last && n_before > 0) {
        await_semaphore(semaphore, n_before);
        ml_barrier_expect(&smem.open[stage], bytes);
        ml_bulk_copy(smem.part[stage], sums, bytes, &smem.open[stage]);
    } else {
        ml_barrier_arrive(&smem.open[stage]);
    }
    ml_barrier_wait(&smem.done[stage], phase(n));
    if (last)
        return;
    if (n_before > 0)
        await_semaphore(semaphore, n_before);
    add_part(sums, smem.part[stage], bytes, semaphore, n_before);
}

/* What one thread of an adding warp does with the parts of its stage. */
__device__ static void add_parts(once_smem &smem, const attn_call<bf16> &c, int stage) {
    for (int i = 0, n = 0;; i++) {
        ml_barrier_wait(&smem.item_full[i % 2], (unsigned)(i / 2) & 1);
        const key_item &it = smem.item[i % 2];
        if (it.p.index < 0)
            return;
        for (int at = it.hi; at >= it.lo; at--, n++)
            if (n % STAGES == stage)
                pass_part(smem, c, it, at, n);
        ml_barrier_arrive(&smem.item_empty[i % 2]);
    }
}

/* ---- the copying warp ---- */

/* What one lane finds out about an item.  False: no row attends to its keys.  All tiles from lo to hi are of
 * the block, also those between two pieces of which no row does: first_keys and last_keys count it. */
__device__ static bool open_item(key_item *to, const attn_call<bf16> &c, int head,
                                 bool pieces) {
    int first, end;

    to->by = attn_readers(c, to->p.owner, to->p.first_row, pieces);
    to->n_row = to->by.n * c.group;
    to->head = head;
    to->tile = to->p.index * OWN;
    first = attn_first_reader(c, to->by, to->tile) * c.group;
    end = attn_end_reader(c, to->by, to->tile + OWN - 1, to->p.rows) * c.group;
    to->lo = first / ATTN_ROWS;
    to->hi = (end + ATTN_ROWS - 1) / ATTN_ROWS - 1;
    return first < to->n_row && to->lo <= to->hi;
}

/* Keys of a sequence in ascending order, those of its heads in semaphore.  A warp calls it. */
__device__ static void take_keys(key_item *to, const attn_call<bf16> &c, unsigned *counter,
                                 unsigned n_item, bool pieces) {
    bool found = false;
    unsigned at;

    do {
        at = threadIdx.x % 32 == 0 ? atomicAdd(counter, 1) : 0;
        at = __shfl_sync(0xffffffffu, at, 0);
        ml_find_piece_warp(&to->p, c.keys.seq_start, c.keys.n_seq, 1, OWN,
                           at < n_item ? (int)at / c.n_kv : INT_MAX);
        if (to->p.index >= 0 && threadIdx.x % 32 == 0)
            found = open_item(to, c, (int)at % c.n_kv, pieces);
        found = __any_sync(0xffffffffu, found);
    } while (at < n_item && !found);
    if (at == n_item + gridDim.x - 1 && threadIdx.x % 32 == 0)
        *counter = 0; /* no block takes one after this */
}

/* The last keys of a sequence: those behind it become zero. */
__device__ static void copy_last_keys(once_smem &smem, const attn_call<bf16> &c,
                                      const key_item &it, const int32_t *page) {
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; i < OWN * (D / 8); i += 32) {
        int row = i / (D / 8), e = i % (D / 8), key = it.tile + row;
        int to = ml_panel_at(row % ATTN_ROWS, e);
        bool there = key < it.p.rows;
        const int at = there ? key : it.tile;
        ml_copy_async(smem.keys[row / ATTN_ROWS] + to,
                      attn_key(c, page, it.head, at) + e * 8, there);
        ml_copy_async(smem.values[row / ATTN_ROWS] + to,
                      attn_value(c, page, it.head, at) + e * 8, there);
    }
    ml_copy_commit();
    ml_copy_wait<0>();
    ml_wgmma_publish();
}

/* A lane's page of keys and values. */
__device__ static void copy_page(once_smem &smem, const once_maps &maps, int row, int own) {
    const int at = own % ATTN_TILE_PAGES * ML_PAGE * 64, team = own / ATTN_TILE_PAGES;

    for (int i = 0; i < D / 64; i++) {
        ml_tensor_copy(smem.keys[team] + i * ML_PANEL + at, &maps.pages.keys, i * 64, row,
                       0, &smem.keys_full);
        ml_tensor_copy(smem.values[team] + i * ML_PANEL + at, &maps.pages.values, i * 64,
                       row, 0, &smem.keys_full);
    }
}

__device__ static void copy_keys(once_smem &smem, const attn_call<bf16> &c,
                                 const once_maps &maps, const key_item &it) {
    const int32_t *page = c.keys.page + c.keys.page_start[it.p.owner];
    const int lane = (int)threadIdx.x % 32;

    if (it.tile + OWN > it.p.rows) {
        copy_last_keys(smem, c, it, page);
    } else {
        if (lane == 0)
            ml_barrier_expect_more(&smem.keys_full, sizeof smem.keys + sizeof smem.values);
        __syncwarp();
        if (lane < OWN / ML_PAGE)
            copy_page(smem, maps,
                      (page[it.tile / ML_PAGE + lane] * c.n_kv + it.head) * ML_PAGE, lane);
    }
    ml_barrier_arrive(&smem.keys_full);
}

/* LSE and delta of the rows of a tile. */
__device__ static void copy_numbers(float *to, const attn_call<bf16> &c, const key_item &it,
                                    int at) {
#pragma unroll
    for (int i = (int)threadIdx.x % 32; i < ATTN_ROWS; i += 32) {
        int row = at * ATTN_ROWS + i;
        bool there = row < it.n_row;
        int64_t from = attn_head_at(c, it.by.first, it.head, there ? row : 0);
        ml_copy_async4(to + i, c.shift + from, there);
        ml_copy_async4(to + ATTN_ROWS + i, c.delta + from, there);
    }
}

/* Tile `at` of the item's query rows, which is tile n of the block. */
__device__ static void copy_rows(once_smem &smem, const attn_call<bf16> &c,
                                 const once_maps &maps, const key_item &it, int at, int n) {
    const int stage = n % STAGES, token = it.by.first + attn_token(c, at * ATTN_ROWS);
    ml_barrier *full = &smem.full[stage];

    if (n >= STAGES)
        ml_barrier_wait(&smem.empty[stage], phase(n) ^ 1);
    copy_numbers(smem.number[stage], c, it, at);
    ml_barrier_arrive_copied(full);
    if (threadIdx.x % 32 != 0)
        return;
    ml_barrier_expect(full, sizeof smem.stage[0]);
    for (int i = 0; i < D / 64; i++) {
        ml_tensor_copy(smem.stage[stage].q + i * ML_PANEL, &maps.q, i * 64,
                       it.head * c.group, token, full);
        ml_tensor_copy(smem.stage[stage].dout + i * ML_PANEL, &maps.dout, i * 64,
                       it.head * c.group, token, full);
    }
}

__device__ static void copy_items(once_smem &smem, const attn_call<bf16> &c,
                                  const once_maps &maps, unsigned *counter, unsigned n_item,
                                  bool pieces) {
    for (int i = 0, n = 0;; i++) {
        key_item *it = &smem.item[i % 2];
        if (i >= 2)
            ml_barrier_wait(&smem.item_empty[i % 2], (unsigned)(i / 2 - 1) & 1);
        take_keys(it, c, counter, n_item, pieces);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ml_barrier_arrive(&smem.item_full[i % 2]);
        if (it->p.index < 0)
            return;
        copy_rows(smem, c, maps, *it, it->hi, n++);
        if (i >= 1)
            ml_barrier_wait(&smem.keys_empty, (unsigned)(i - 1) & 1);
        copy_keys(smem, c, maps, *it);
        for (int at = it->hi - 1; at >= it->lo; at--)
            copy_rows(smem, c, maps, *it, at, n++);
    }
}

/* ---- the teams ---- */

/* Masks the scores of 64 keys from `key` on with rows `row` .. that do not attend to them, or that the
 * sequence does not have; keys are the rows of s. */
__device__ static inline void mask_scores(float (&s)[8][4], const attn_call<bf16> &c,
                                          const key_item &it, int key, int row) {
    int lane = (int)threadIdx.x % 32;

    if (row >= (key + ATTN_ROWS - 1) * c.group &&
        row + ATTN_ROWS <= attn_end_token(c, key, it.p.rows) * c.group)
        return;
    key += (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4;
    row += lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int from = (key + 8 * r) * c.group - row;
        int end = attn_end_token(c, key + 8 * r, it.p.rows) * c.group - row;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (j * 8 + k < from || j * 8 + k >= end)
                    s[j][k + 2 * r] = -INFINITY;
    }
}

/* The same of rows that are pieces of a sequence. */
__device__ static inline void mask_pieces(float (&s)[8][4], const attn_call<bf16> &c,
                                          const key_item &it, int key, int row) {
    int lane = (int)threadIdx.x % 32;
    const int32_t *pos = c.pos + it.by.first;

    key += (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4;
    row += lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int at = row + j * 8 + k, upto = at < it.n_row ? pos[attn_token(c, at)] : -1;
            int first = attn_first_key(c, upto);
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (key + 8 * r > upto || key + 8 * r < first)
                    s[j][k + 2 * r] = -INFINITY;
        }
}

/* Writes dS, A fragments with a row per key, to a panel. */
__device__ static inline void put_ds(bf16 *panel, const uint32_t (&w)[4][4]) {
    int lane = (int)threadIdx.x % 32;
    int row = (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane % 16;
    uint32_t to = ml_smem(panel + ml_panel_at(row, lane / 16));

#pragma unroll
    for (int j = 0; j < 4; j++)
        ml_stmatrix4(to ^ (uint32_t)j << 5, w[j]);
}

__device__ static inline void sync_teams(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)TEAM_THREADS) : "memory");
}

/* Starts dq [64 rows x 64 columns] = dS' K over the keys of both teams, for the team's columns. */
__device__ static inline void start_queries(float (&dq)[8][4], once_smem &smem, int stage,
                                            int team) {
#pragma unroll
    for (int t = 0; t < TEAMS; t++) {
        uint32_t ds = ml_panel(smem.ds[stage][t]), keys = ml_panel(smem.keys[t]);
#pragma unroll
        for (int k = 0; k < ATTN_ROWS / 16; k++)
            ml_wgmma<true, true>(dq, ml_panel_rows(ds, 0, k), ml_panel_rows(keys, team, k),
                                 t != 0 || k != 0);
    }
    ml_wgmma_commit();
}

/* Where a thread's numbers of a part of dq are: rows of D numbers, of which 16-byte piece e of row r is at
 * e XOR r % 8, against bank conflicts.  Those of tile j are at this place XOR 8 j. */
__device__ static inline int part_at(int team) {
    int lane = (int)threadIdx.x % 32;
    int row = (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4;
    int piece = (team * 16 + lane % 4 / 2) ^ row % 8;
    return row * D + piece * 4 + lane % 2 * 2;
}

__device__ static inline float2 *part_pair(float *part, int at, int j, int r) {
    return (float2 *)(part + (at ^ j << 3) + r * 8 * D);
}

/* dq += part */
__device__ static inline void get_part(float (&dq)[8][4], float *part, int team) {
    const int at = part_at(team);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 v = *part_pair(part, at, j, r);
            dq[j][2 * r] += v.x;
            dq[j][2 * r + 1] += v.y;
        }
}

__device__ static inline void put_part(float *part, const float (&dq)[8][4], int team) {
    const int at = part_at(team);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            *part_pair(part, at, j, r) = make_float2(dq[j][2 * r], dq[j][2 * r + 1]);
}

/* The warp has used its stage of parts. */
__device__ static inline void end_part(ml_barrier *done) {
    __syncwarp();
    attn_release(done);
}

__device__ static inline void put_queries(const float (&dq)[8][4], const attn_call<bf16> &c,
                                          const key_item &it, int at, int team) {
    int lane = (int)threadIdx.x % 32;
    int row = at * ATTN_ROWS + (int)threadIdx.x % ML_WARPGROUP / 32 * 16 + lane / 4;

#pragma unroll
    for (int r = 0; c.dq && r < 2; r++) {
        bf16 *to = c.dq + attn_head_at(c, it.by.first, it.head, row + 8 * r) * D;
#pragma unroll
        for (int j = 0; row + 8 * r < it.n_row && j < 8; j++)
            attn_put2(to, D, team * 64 + j * 8 + lane % 4 * 2, dq[j][2 * r] * c.scale,
                      dq[j][2 * r + 1] * c.scale, c.add_q);
    }
}

/* Keeps w in its registers: products that read it are running until here. */
__device__ static inline void keep(uint32_t (&w)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile("" : "+r"(w[j][k]));
}

/* The last block that has a part of these rows writes dq; others hand their part over. */
__device__ static inline void finish_part(float (&dq)[8][4], float *part,
                                          const attn_call<bf16> &c, const key_item &it,
                                          int at, int team) {
    if (it.p.index < last_keys(c, it, at)) {
        put_part(part, dq, team);
        ml_wgmma_publish();
        return;
    }
    if (it.p.index > first_keys(c, it, at))
        get_part(dq, part, team);
    put_queries(dq, c, it, at, team);
}

/* Returns the number of all tiles so far. */
template <bool CAP, bool PIECES>
__device__ static int back_keys(once_smem &smem, const attn_call<bf16> &c,
                                const key_item &it, int team, int n) {
    const uint32_t keys = ml_panel(smem.keys[team]), values = ml_panel(smem.values[team]);
    const int key = it.tile + team * ATTN_ROWS;
    const float to_log2 = CAP ? ML_LOG2E : c.scale * ML_LOG2E;
    typedef typename attn_key_grad<PIECES>::type grad;
    float dk[D / 8][4], dv[D / 8][4];

    for (int at = it.hi; at >= it.lo; at--, n++) {
        const int now = n % STAGES;
        const bool any = at != it.hi;
        float s[8][4], dp[8][4], dq[8][4];
        uint32_t w[4][4], dw[4][4];

        ml_barrier_wait(&smem.full[now], phase(n));
        ml_wgmma_fence();
        attn_start_scores<D>(s, keys, ml_panel(smem.stage[now].q));
        attn_start_scores<D>(dp, values, ml_panel(smem.stage[now].dout));
        ml_wgmma_wait<1>(s); /* and dk of the step before */
        if (any)
            attn_release(&smem.empty[(n - 1) % STAGES]);
        if (CAP)
            attn_cap(s, c);
        if (PIECES)
            mask_pieces(s, c, it, key, at * ATTN_ROWS);
        else
            mask_scores(s, c, it, key, at * ATTN_ROWS);
        attn_weigh_columns<CAP>(w, s, smem.number[now], to_log2, c.softcap);
        ml_wgmma_fence(w);
        attn_start_sums<D>(dv, w, ml_panel(smem.stage[now].dout), any);
        ml_wgmma_wait<CAP ? 0 : 1>(dp); /* with CAP there are no registers for w and dw */
        attn_slope_columns(dw, s, dp, smem.number[now] + ATTN_ROWS);
        ml_wgmma_wait<0>(dv);
        if (!CAP)
            keep(w);
        put_ds(smem.ds[now][team], dw);
        ml_wgmma_publish();
        sync_teams();
        ml_wgmma_fence(dw);
        start_queries(dq, smem, now, team);
        attn_start_sums<D>(dk, dw, ml_panel(smem.stage[now].q), any);
        ml_wgmma_wait<1>(dq);
        ml_barrier_wait(&smem.open[now], phase(n));
        finish_part(dq, smem.part[now], c, it, at, team);
        end_part(&smem.done[now]);
    }
    for (int h = 0; h < D / 64; h++) {
        ml_wgmma_wait<0>(dk + 8 * h);
        ml_wgmma_wait<0>(dv + 8 * h);
    }
    attn_release(&smem.empty[(n - 1) % STAGES]);
    attn_release(&smem.keys_empty);
    attn_put_keys<D>((grad *)c.dk, dk, c.scale, c, it.p, it.head, key, c.add_k);
    attn_put_keys<D>((grad *)c.dv_out, dv, 1.0f, c, it.p, it.head, key, c.add_v);
    return n;
}

template <bool CAP, bool PIECES>
__device__ static void back_items(once_smem &smem, const attn_call<bf16> &c) {
    const int team = attn_team();

    for (int i = 0, n = 0;; i++) {
        ml_barrier_wait(&smem.item_full[i % 2], (unsigned)(i / 2) & 1);
        const key_item &it = smem.item[i % 2];
        if (it.p.index < 0)
            return;
        ml_barrier_wait(&smem.keys_full, (unsigned)i & 1);
        n = back_keys<CAP, PIECES>(smem, c, it, team, n);
        __syncwarp(); /* all lanes have read the item */
        attn_release(&smem.item_empty[i % 2]);
    }
}

/* ---- the kernel ---- */

__device__ static void init_barriers(once_smem &smem) {
    for (int i = 0; i < 2; i++) {
        ml_barrier_init(&smem.item_full[i]);
        ml_barrier_init(&smem.item_empty[i], TEAM_WARPS + ADDERS);
    }
    ml_barrier_init(&smem.keys_full, 32);
    ml_barrier_init(&smem.keys_empty, TEAM_WARPS);
    for (int i = 0; i < STAGES; i++) {
        ml_barrier_init(&smem.full[i], 32 + 1);
        ml_barrier_init(&smem.empty[i], TEAM_WARPS);
        ml_barrier_init(&smem.open[i]);
        ml_barrier_init(&smem.done[i], TEAM_WARPS);
    }
    ml_barrier_init_end();
}

template <bool CAP, bool PIECES>
__global__ void __launch_bounds__(THREADS, 1)
    back_once(attn_call<bf16> c, const __grid_constant__ once_maps maps, unsigned counter,
              unsigned n_item) {
    once_smem &smem = *(once_smem *)attn_smem;
    int warp = (int)threadIdx.x / 32 - TEAM_WARPS;

    if (threadIdx.x == 0)
        init_barriers(smem);
    __syncthreads();
    if (warp >= 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)HELPER_REGISTERS));
        if (warp == 0)
            copy_items(smem, c, maps, &attn_taken[counter], n_item, PIECES);
        else if (warp <= ADDERS && threadIdx.x % 32 == 0)
            add_parts(smem, c, warp - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)TEAM_REGISTERS));
        back_items<CAP, PIECES>(smem, c);
    }
}

/* ---- launching ---- */

/* Rows of a KV head's queries: 64 of them are whole tokens. */
static cudaError_t map_rows(CUtensorMap *map, const bf16 *rows, const attn_call<bf16> &c) {
    ml_tensor_box b = {};

    b.at = rows;
    b.cols = b.row_stride = D;
    b.rows = c.n_head;
    b.count = c.n_token;
    b.stride = (int64_t)c.n_head * D;
    b.box_cols = 64;
    b.box_rows = c.group;
    b.box_count = ATTN_ROWS / c.group;
    return ml_tensor_map(map, &b);
}

template <bool CAP, bool PIECES>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    auto kernel = back_once<CAP, PIECES>;
    unsigned n_item = attn_most_pieces(c.keys.n, c.keys.n_seq, 1, OWN) * (unsigned)c.n_kv;
    unsigned blocks = n_item < s->sms ? n_item : s->sms;
    const char *doing = "attention backward";
    once_maps maps;

    ml_cuda_note(s, attn_map_pages(&maps.pages.keys, c.kpage, c.d), doing);
    ml_cuda_note(s, attn_map_pages(&maps.pages.values, c.vpage, c.dv), doing);
    ml_cuda_note(s, map_rows(&maps.q, c.q, c), doing);
    ml_cuda_note(s, map_rows(&maps.dout, c.dout, c), doing);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(once_smem)),
                 doing);
    kernel<<<blocks, THREADS, sizeof(once_smem), s->stream>>>(
        c, maps, s->number % ATTN_COUNTERS, n_item);
    ml_cuda_launched(s, doing);
}

void ml_attn_back_once(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.softcap == 0.0f)
        c.keys.piece ? launch<false, true>(s, c) : launch<false, false>(s, c);
    else
        c.keys.piece ? launch<true, true>(s, c) : launch<true, false>(s, c);
}
