/* attn_wide_back.cu - attention backward with mma for wide heads, without atomics: see
 * attn_wide.cuh.
 *
 * Two kernels, as in attn_mma_back.cu: one loops over keys for 32 query rows (dq), the other
 * over query rows for 32 keys (dk, dv); both recompute the scores.  Every gradient has one
 * writer and one order of sums.  With lists (ATTN_CHOSEN) the second has a mask of its 32
 * keys for each token, and dk is also the gradient of the value. */
#include "backend/cuda/attn/attn_wide.cuh"

enum {
    KEYS = 32,
    SLOPE_LD = ML_KTILE + 8,  /* of dS, rows by keys */
    WEIGHT_LD = WIDE_ROWS + 8 /* of P and dS, keys by rows */
};

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
__device__ static inline void weigh(const attn_call<bf16> &c, const row_stat &r, bool seen,
                                    float s, float dp, float &p, float &ds) {
    float slope = c.scale;
    if (c.softcap != 0.0f) {
        s = c.softcap * ml_tanh(s * c.scale / c.softcap);
        slope *= attn_cap_slope(s, c.softcap);
        s *= ML_LOG2E;
    } else {
        s *= c.scale * ML_LOG2E;
    }
    p = seen ? ml_exp2(s - r.shift) : 0.0f;
    ds = seen ? p * (dp - r.delta) * slope : 0.0f;
}

/* A fragments of 16 rows of a matrix in shared memory with row stride LD. */
template <int LD, int K>
__device__ static inline void load_left(uint32_t (&w)[K][4], const bf16 *m, int row) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < K; k++)
        ml_ldmatrix4(w[k], m + (row + lane % 16) * LD + k * 16 + lane / 16 * 8);
}

/* ---- dq ---- */

template <int D, int E> struct query_smem {
    bf16 rows[WIDE_ROWS * attn_tile<D>::ld], outs[WIDE_ROWS * attn_tile<E>::ld];
    bf16 buf[2][attn_tile<D>::key_tile]; /* tiles in turn; or keys, values */
    bf16 slope[WIDE_ROWS * SLOPE_LD];
    wide_tile tile[2];
};

/* LSE and delta of a lane's two rows, and the keys that they attend to. */
struct lane_rows {
    row_stat stat[2];
    int pos[2], first[2];
};

/* `row` is the warp's first. */
template <bool LIST>
__device__ static lane_rows lane_rows_of(const attn_call<bf16> &c, const wide_block &b,
                                         int row) {
    lane_rows x;
    for (int r = 0; r < 2; r++) {
        int at = row + (int)threadIdx.x % 32 / 4 + 8 * r;
        x.stat[r] = stat_of(c, b.p.first_row, b.head, at, b.n_row);
        x.pos[r] = at >= b.n_row ? -1
                   : LIST        ? b.hi
                                 : c.pos[b.p.first_row + attn_token(c, at)];
        x.first[r] = LIST ? 0 : attn_first_key(c, x.pos[r]);
    }
    return x;
}

/* dS of 16 rows from `own` on and of 16 keys of a tile, to shared memory. */
__device__ static inline void put_slopes(bf16 *to, const attn_call<bf16> &c,
                                         const lane_rows &x, float (&s)[2][4],
                                         const float (&dp)[2][4], int own, int part,
                                         int tile) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int at = part * WIDE_OWN + j * 8 + lane % 4 * 2;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                bool seen = tile + at + k <= x.pos[r] && tile + at + k >= x.first[r];
                float p;
                weigh(c, x.stat[r], seen, s[j][2 * r + k], dp[j][2 * r + k], p,
                      s[j][2 * r + k]);
            }
            *(uint32_t *)(to + (own + lane / 4 + 8 * r) * SLOPE_LD + at) =
                ml_pack2(s[j][2 * r], s[j][2 * r + 1]);
        }
}

template <int N>
__device__ static void put_queries(const float (&acc)[N][4], const attn_call<bf16> &c,
                                   const wide_block &b, int row, int part) {
    int lane = (int)threadIdx.x % 32;
    for (int r = 0; r < 2; r++) {
        int at_row = row + lane / 4 + 8 * r;
        int64_t at = attn_head_at(c, b.p.first_row, b.head, at_row);
#pragma unroll
        for (int j = 0; at_row < b.n_row && j < N; j++)
            attn_put2(c.dq + at * c.d, c.d, (part * N + j) * 8 + lane % 4 * 2,
                      acc[j][2 * r], acc[j][2 * r + 1], c.add_q);
    }
}

template <int D, int E, bool IN_KEY, bool LIST>
__global__ void __launch_bounds__(WIDE_THREADS, D > 256 ? 1 : 2)
    wide_back_queries(attn_call<bf16> c) {
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    query_smem<D, E> &smem = *(query_smem<D, E> *)smem_bytes;
    const int N = D / 8 / WIDE_PARTS;
    wide_block b = wide_open<LIST, WIDE_ROWS>(c);
    int warp = (int)threadIdx.x / 32, part = warp % WIDE_PARTS;
    int own = warp / WIDE_PARTS * WIDE_OWN;
    int tile = b.lo / ML_KTILE * ML_KTILE;
    lane_rows own_rows;
    float acc[N][4] = {};

    if (b.p.index < 0)
        return;
    own_rows = lane_rows_of<LIST>(c, b, b.row0 + own);
    if (LIST && b.hi == 0 && !c.sink) /* the weight of a single key is 1: no gradient */
        b.hi = -1;
    wide_find_keys<LIST, false>(smem.tile[0], c, b, tile);
    __syncthreads();
    wide_fetch_rows<D>(smem.rows, c.q, c.d, c, b.p.first_row, b.head, b.row0, b.n_row);
    wide_fetch_rows<E>(smem.outs, c.dout, c.e, c, b.p.first_row, b.head, b.row0, b.n_row);
    wide_fetch<D, ML_KTILE>(smem.buf[0], smem.tile[0].key, c.d, c.kpage);
    if (!IN_KEY)
        wide_fetch<D, ML_KTILE>(smem.buf[1], smem.tile[0].value, c.e, c.kpage);
    ml_copy_commit();
    for (int n = 0; tile <= b.hi; tile += ML_KTILE, n++) {
        const bf16 *keys = smem.buf[IN_KEY ? n % 2 : 0];
        const bf16 *values = smem.buf[IN_KEY ? n % 2 : 1];
        bool more = tile + ML_KTILE <= b.hi;
        float s[2][4], dp[2][4];
        uint32_t w[4][4];

        if (more)
            wide_find_keys<LIST, false>(smem.tile[(n + 1) % 2], c, b, tile + ML_KTILE);
        ml_copy_wait<0>();
        __syncthreads(); /* the tile arrived; the one before is no longer read */
        if (IN_KEY && more)
            wide_fetch<D, ML_KTILE>(smem.buf[(n + 1) % 2], smem.tile[(n + 1) % 2].key, c.d,
                                    c.kpage);
        wide_scores<D, D, D>(s, smem.rows, own, keys, part * WIDE_OWN);
        wide_scores<E, E, D>(dp, smem.outs, own, values, part * WIDE_OWN);
        put_slopes(smem.slope, c, own_rows, s, dp, own, part, tile);
        __syncthreads(); /* dS is there; the values are no longer read */
        if (!IN_KEY && more)
            wide_fetch<D, ML_KTILE>(smem.buf[1], smem.tile[(n + 1) % 2].value, c.e,
                                    c.kpage);
        load_left<SLOPE_LD, 4>(w, smem.slope, own);
        wide_accumulate<D, 4, N>(acc, w, keys, part * N * 8);
        if (!IN_KEY) {
            __syncthreads();
            if (more)
                wide_fetch<D, ML_KTILE>(smem.buf[0], smem.tile[(n + 1) % 2].key, c.d,
                                        c.kpage);
        }
        ml_copy_commit();
    }
    ml_copy_wait<0>();
    put_queries<N>(acc, c, b, b.row0 + own, part);
}

/* ---- dk, dv ---- */

template <int D, int E, bool IN_KEY> struct key_smem {
    bf16 keys[KEYS * attn_tile<D>::ld];
    bf16 values[IN_KEY ? 8 : KEYS * attn_tile<E>::ld];
    struct {
        bf16 q[WIDE_ROWS * attn_tile<D>::ld], dout[WIDE_ROWS * attn_tile<E>::ld];
    } stage[2];
    bf16 weight[KEYS * WEIGHT_LD], slope[KEYS * WEIGHT_LD];
    row_stat stat[2][WIDE_ROWS];
    uint32_t seen[2][WIDE_ROWS]; /* bit i: the row attends to key i of the block */
    const void *key[KEYS], *value[KEYS];
};

/* The block's keys: `first` .. of n keys of a sequence. */
struct key_block {
    ml_piece p;
    int head, first, n, ratio;
    int base; /* attn_base */
    attn_reads by;
    bool compressed;
};

/* Bits of the keys that a row attends to. */
__device__ static uint32_t causal_mask(const attn_call<bf16> &c, const key_block &b,
                                       int token) {
    int lo = attn_first_read(c, b.by, token) - b.first;
    int hi = attn_last_read(c, b.by, token) - b.first;
    uint32_t upto = hi < 0 ? 0u : hi >= 31 ? ~0u : (2u << hi) - 1;

    return lo <= 0 ? upto : lo > 31 ? 0u : upto & ~((1u << lo) - 1);
}

/* The same of a token's list: a search by all lanes of a warp, 32 entries at a time. */
__device__ static uint32_t list_mask(const attn_call<bf16> &c, const key_block &b,
                                     int token) {
    const int32_t *chosen = c.chosen + (int64_t)(b.by.first + token) * c.n_chosen;
    int lane = (int)threadIdx.x % 32, lo = 0, hi = c.n_chosen, at;

    while (hi > lo) { /* the first entry that is -1 or not below the block */
        int step = (hi - lo + 31) / 32, n;
        at = lo + lane * step;
        n = __popc(
            __ballot_sync(0xffffffffu, at < hi && chosen[at] >= 0 && chosen[at] < b.first));
        hi = lo + n * step < hi ? lo + n * step : hi;
        lo = n ? lo + (n - 1) * step + 1 : lo;
    }
    at = lo + lane < c.n_chosen ? chosen[lo + lane] - b.first : -1;
    return __reduce_or_sync(0xffffffffu, at >= 0 && at < KEYS ? 1u << at : 0u);
}

__device__ static uint32_t mask_of(const attn_call<bf16> &c, const key_block &b,
                                   int token) {
    int pos = attn_last_read(c, b.by, token); /* with lists there are no prefixes */
    int n = (pos + 1) / b.ratio - b.first;    /* visible keys of the block */

    if (c.ratio && !b.compressed) {
        int lo = pos - c.window + 1 - b.first;
        uint32_t upto = n <= 0 ? 0u : n >= KEYS ? ~0u : (1u << n) - 1;
        return lo <= 0 ? upto : lo > 31 ? 0u : upto & ~((1u << lo) - 1);
    }
    if (!c.chosen)
        return n <= 0 ? 0u : n >= KEYS ? ~0u : (1u << n) - 1;
    return list_mask(c, b, token);
}

/* Masks of rows row .. row + 31; with lists a warp has every eighth of their tokens. */
template <bool LIST>
__device__ static void find_masks(uint32_t *seen, const attn_call<bf16> &c,
                                  const key_block &b, int row, int n_row) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, at = row + lane;
    int last = attn_token(c, row + WIDE_ROWS < n_row ? row + WIDE_ROWS - 1 : n_row - 1);

    if (!LIST) {
        if (warp == 0)
            seen[lane] = at < n_row ? causal_mask(c, b, attn_token(c, at)) : 0u;
        return;
    }
    if (warp == 0 && at >= n_row)
        seen[lane] = 0;
    for (int t = attn_token(c, row) + warp; t <= last; t += WIDE_THREADS / 32) {
        uint32_t mask = mask_of(c, b, t);
        if (at < n_row && attn_token(c, at) == t)
            seen[lane] = mask;
    }
}

/* Starts the copies of step n: 32 query rows from `row` on. */
template <int D, int E, bool IN_KEY, bool LIST>
__device__ static void fetch_step(key_smem<D, E, IN_KEY> &smem, int n,
                                  const attn_call<bf16> &c, const key_block &b, int row,
                                  int n_row) {
    wide_fetch_rows<D>(smem.stage[n % 2].q, c.q, c.d, c, b.by.first, b.head, row, n_row);
    wide_fetch_rows<E>(smem.stage[n % 2].dout, c.dout, c.e, c, b.by.first, b.head, row,
                       n_row);
    find_masks<LIST>(smem.seen[n % 2], c, b, row, n_row);
    if (threadIdx.x < WIDE_ROWS)
        smem.stat[n % 2][threadIdx.x] =
            stat_of(c, b.by.first, b.head, row + (int)threadIdx.x, n_row);
}

/* s [16 x 8] = keys `own` .. times query rows `row` .., both D wide with strides A and B. */
template <int D, int A, int B>
__device__ static inline void score_rows(float (&s)[4], const bf16 *keys, int own,
                                         const bf16 *rows, int row) {
    int lane = (int)threadIdx.x % 32;

    s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < D; k += 32) {
        uint32_t l[2][4], r[4];
        attn_left<A>(l[0], keys, own, k);
        attn_left<A>(l[1], keys, own, k + 16);
        ml_ldmatrix4(r, rows + (row + lane % 8) * attn_tile<B>::ld + k + lane / 8 * 8);
        ml_mma(s, l[0], r[0], r[1]);
        ml_mma(s, l[1], r[2], r[3]);
    }
}

/* Finds the block's keys; false: there are none. */
template <bool LIST, bool PIECES>
__device__ static bool open_keys(key_block &b, const attn_call<bf16> &c, bool compressed) {
    b.p =
        attn_find_piece(c.keys.seq_start, c.keys.n_seq, c.keys.n, 1, KEYS, (int)blockIdx.x);
    b.head = (int)blockIdx.y;
    b.first = b.p.index * KEYS;
    b.compressed = compressed;
    b.ratio = LIST && compressed ? c.ratio : 1;
    b.n = b.p.rows / b.ratio;
    if (b.p.index < 0 || b.first >= b.n)
        return false;
    b.base = attn_base(c, b.p.first_row);
    b.by = attn_readers(c, b.p.owner, b.p.first_row, PIECES);
    return true;
}

template <int D, int E, bool IN_KEY, bool LIST>
__device__ static void find_keys(key_smem<D, E, IN_KEY> &smem, const attn_call<bf16> &c,
                                 const key_block &b) {
    const int32_t *page = c.keys.page + c.keys.page_start[b.p.owner];
    int key = b.first + (int)threadIdx.x;
    bool there = key < b.n;

    if (threadIdx.x >= KEYS)
        return;
    if (LIST) {
        const bf16 *pages = b.compressed ? c.cpage : c.kpage;
        smem.key[threadIdx.x] = there ? pages + attn_slot(page, key, b.ratio) * c.d : NULL;
        return;
    }
    smem.key[threadIdx.x] = there ? attn_key(c, page, b.head, b.base + key) : NULL;
    smem.value[threadIdx.x] = there ? attn_value(c, page, b.head, b.base + key) : NULL;
}

/* Stores a warp's 16 keys x N tiles of columns from `col` on, in rows of `step` numbers. */
template <int N, class T>
__device__ static void put_keys(T *to, const float (&acc)[N][4], const attn_call<bf16> &c,
                                const key_block &b, int own, int col, int width, int step,
                                bool add) {
    int lane = (int)threadIdx.x % 32;
    for (int r = 0; to && r < 2; r++) {
        int key = b.first + own + lane / 4 + 8 * r;
        int64_t token = b.p.first_row + (int64_t)(key + 1) * b.ratio - 1;
#pragma unroll
        for (int j = 0; key < b.n && j < N; j++)
            attn_put2(to + (token * c.n_kv + b.head) * step, width,
                      col + j * 8 + lane % 4 * 2, acc[j][2 * r], acc[j][2 * r + 1], add);
    }
}

/* P and dS of 16 keys from `own` on and 8 query rows, to shared memory. */
__device__ static inline void put_weights(bf16 *weight, bf16 *slope,
                                          const attn_call<bf16> &c, const row_stat *stat,
                                          const uint32_t *seen, float (&s)[4],
                                          float (&dp)[4], int own, int part) {
    int lane = (int)threadIdx.x % 32, at = part * 8 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = own + lane / 4 + 8 * r;
#pragma unroll
        for (int k = 0; k < 2; k++)
            weigh(c, stat[at + k], seen[at + k] >> key & 1, s[2 * r + k], dp[2 * r + k],
                  s[2 * r + k], dp[2 * r + k]);
        *(uint32_t *)(weight + key * WEIGHT_LD + at) = ml_pack2(s[2 * r], s[2 * r + 1]);
        *(uint32_t *)(slope + key * WEIGHT_LD + at) = ml_pack2(dp[2 * r], dp[2 * r + 1]);
    }
}

/* A plan with a backward has all keys of a sequence in its batch, or those behind a prefix
 * that is a sequence of its batch, or those of all ranks (attn_readers). */
template <int D, int E, bool IN_KEY, bool LIST, bool PIECES>
__global__ void __launch_bounds__(WIDE_THREADS, D > 256 ? 1 : 2)
    wide_back_keys(attn_call<bf16> c, bool compressed) {
    typedef typename attn_key_grad<PIECES>::type grad;
    extern __shared__ __align__(16) unsigned char smem_bytes[];
    key_smem<D, E, IN_KEY> &smem = *(key_smem<D, E, IN_KEY> *)smem_bytes;
    const int NK = D / 8 / WIDE_PARTS, NV = LIST ? 2 : E / 8 / WIDE_PARTS;
    const bf16 *values = IN_KEY ? smem.keys : smem.values;
    int warp = (int)threadIdx.x / 32, part = warp % WIDE_PARTS;
    int own = warp / WIDE_PARTS * WIDE_OWN;
    int n_row, row, end;
    key_block b;
    float dk[NK][4] = {}, dv[NV][4] = {};

    if (!open_keys<LIST, PIECES>(b, c, compressed))
        return;
    n_row = b.by.n * c.group;
    row = attn_first_reader(c, b.by, (b.first + 1) * b.ratio - 1) * c.group / WIDE_ROWS *
          WIDE_ROWS;
    end = LIST && compressed
              ? n_row
              : attn_end_reader(c, b.by, b.first + KEYS - 1, b.p.rows) * c.group;
    if (PIECES && row >= end) /* ml_attn_clear_keys has written zeros */
        return;
    find_keys<D, E, IN_KEY, LIST>(smem, c, b);
    __syncthreads();
    wide_fetch<D, KEYS>(smem.keys, smem.key, c.d, c.kpage);
    if (!IN_KEY)
        wide_fetch<E, KEYS>(smem.values, smem.value, c.e, c.kpage);
    fetch_step<D, E, IN_KEY, LIST>(smem, 0, c, b, row, n_row);
    ml_copy_commit();
    for (int n = 0; row < end; row += WIDE_ROWS, n++) {
        const auto &now = smem.stage[n % 2];
        float s[4], dp[4];
        uint32_t w[WIDE_ROWS / 16][4], dw[WIDE_ROWS / 16][4];

        if (row + WIDE_ROWS < end)
            fetch_step<D, E, IN_KEY, LIST>(smem, n + 1, c, b, row + WIDE_ROWS, n_row);
        ml_copy_commit();
        ml_copy_wait<1>();
        __syncthreads();
        score_rows<D, D, D>(s, smem.keys, own, now.q, part * 8);
        score_rows<E, IN_KEY ? D : E, E>(dp, values, own, now.dout, part * 8);
        put_weights(smem.weight, smem.slope, c, smem.stat[n % 2], smem.seen[n % 2], s, dp,
                    own, part);
        __syncthreads();
        load_left<WEIGHT_LD, WIDE_ROWS / 16>(w, smem.weight, own);
        load_left<WEIGHT_LD, WIDE_ROWS / 16>(dw, smem.slope, own);
        wide_accumulate<D, WIDE_ROWS / 16, NK>(dk, dw, now.q, part * NK * 8);
        if (!LIST)
            wide_accumulate<E, WIDE_ROWS / 16, NV>(dv, w, now.dout, part * NV * 8);
        else /* the value is part of the key */
#pragma unroll
            for (int j = 0; j < NK; j += 2)
                if (part * NK * 8 + j * 8 < E)
                    wide_accumulate<E, WIDE_ROWS / 16, 2>(*(float(*)[2][4])(dk + j), w,
                                                          now.dout, part * NK * 8 + j * 8);
        __syncthreads();
    }
    ml_copy_wait<0>();
    if (LIST) {
        put_keys<NK>(c.dk ? (grad *)c.dk + (compressed ? c.d : 0) : NULL, dk, c, b, own,
                     part * NK * 8, c.d, (c.ratio ? 2 : 1) * c.d, c.add_k);
        return;
    }
    put_keys<NK>((grad *)c.dk, dk, c, b, own, part * NK * 8, c.d, c.d, c.add_k);
    put_keys<NV>((grad *)c.dv_out, dv, c, b, own, part * NV * 8, c.e, c.e, c.add_v);
}

template <class K> static void allow(ml_cuda_stream *s, K *kernel, size_t bytes) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "attention backward");
}

template <int D, int E, bool IN_KEY, bool LIST>
static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    size_t query_bytes = sizeof(query_smem<D, E>),
           key_bytes = sizeof(key_smem<D, E, IN_KEY>);
    int per_token = (c.n_head + WIDE_ROWS - 1) / WIDE_ROWS;
    dim3 queries(attn_most_pieces(c.n_token, c.n_seq, c.group, WIDE_ROWS),
                 (unsigned)c.n_kv);
    dim3 keys(attn_most_pieces(c.keys.n, c.keys.n_seq, 1, KEYS), (unsigned)c.n_kv);
    void (*back_keys)(attn_call<bf16>, bool) =
        c.keys.piece ? wide_back_keys<D, E, IN_KEY, LIST, true>
                     : wide_back_keys<D, E, IN_KEY, LIST, false>;

    if (LIST)
        queries.x = (unsigned)(c.n_token * per_token);
    else if (c.n_token == c.n_seq && c.group <= WIDE_ROWS)
        queries.x = (unsigned)c.n_seq;
    allow(s, wide_back_queries<D, E, IN_KEY, LIST>, query_bytes);
    allow(s, back_keys, key_bytes);
    if (c.dk || c.dv_out)
        back_keys<<<keys, WIDE_THREADS, key_bytes, s->stream>>>(c, false);
    if (c.dk && LIST && c.ratio)
        back_keys<<<keys, WIDE_THREADS, key_bytes, s->stream>>>(c, true);
    if (c.dq)
        wide_back_queries<D, E, IN_KEY, LIST>
            <<<queries, WIDE_THREADS, query_bytes, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

void ml_attn_wide_back(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (!c.vpage)
        launch<576, 512, true, false>(s, c);
    else if (c.d <= 256 && c.e <= 256)
        launch<256, 256, false, false>(s, c);
    else
        launch<512, 512, false, false>(s, c);
}

void ml_attn_wide_chosen_back(ml_cuda_stream *s, const attn_call<bf16> &c) {
    if (c.dk && c.ratio && !c.add_k) /* rows without a compressed key */
        ml_cuda_note(s,
                     cudaMemsetAsync(c.dk, 0,
                                     (size_t)c.keys.n * 2 * (size_t)c.d * sizeof(bf16),
                                     s->stream),
                     "attention backward");
    if (c.d <= 512)
        launch<512, 512, true, true>(s, c);
    else
        launch<576, 512, true, true>(s, c);
}

/* The kernel of dq needs the most shared memory of all. */
bool ml_attn_wide_supports(const attn_call<bf16> &c) {
    bool small = c.d <= 256 && c.e <= 256;

    if (c.d % 8 != 0 || c.e % 8 != 0)
        return false;
    if (!c.vpage && !c.vcode) /* MLA, or lists */
        return c.d > 128 && c.d <= 576 && c.e <= 512 && c.e <= c.d &&
               wide_fits(sizeof(query_smem<576, 512>));
    return c.d <= 512 && c.e <= 512 &&
           wide_fits(small ? sizeof(query_smem<256, 256>) : sizeof(query_smem<512, 512>));
}
