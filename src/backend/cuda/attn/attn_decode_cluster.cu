/* attn_decode_cluster.cu - decode attention of few sequences: a cluster of blocks has a sequence and a KV
 * head.
 *
 * With one block for these (attn_decode.cu) all keys and values are read by one SM, tile after tile.  Here
 * the blocks of a cluster share a chunk of keys: each computes the scores of some of its tiles and writes
 * them to the shared memory of all, and each has some columns of the values.  All blocks compute the same
 * weights; of a few tiles, the same scores, too, since that takes less time than to wait for each other.
 * The bits are those of attn_decode.cu: each number is one chain, over tiles in the same order. */
#include "backend/cuda/attn/attn_decode.cuh"

enum {
    BLOCKS = 4,    /* of a cluster */
    OWN_TILES = 2, /* of a chunk, whose scores a block computes */
    TILES = BLOCKS * OWN_TILES,
    CHUNK = TILES * ML_KTILE,
    BUFFERS = 2,
    ROWS = 8 /* query heads of a KV head */
};
static_assert(CHUNK / ML_PAGE == 32, "a lane has the id of a page of a chunk");

#if ML_WGMMA

template <int D> struct cluster_smem {
    static const int columns = D / BLOCKS, value_ld = columns + 8;
    bf16 rows[DECODE_ROWS * attn_tile<D>::ld];
    float scores[BUFFERS][TILES][ROWS * DECODE_LD];
    bf16 keys[BUFFERS * OWN_TILES][attn_tile<D>::key_tile];
    bf16 values[BUFFERS][CHUNK * value_ld];
};

/* The keys lo .. hi of a sequence, in chunks from `base` on. */
struct chunks {
    const int32_t *page;
    int base, lo, hi, head, rank;
    bool alone; /* one chunk of few tiles: a block computes all scores */
};

/* The tile of a chunk that is the block's i-th. */
__device__ static int own_tile(const chunks &k, int i) {
    return k.alone ? i : i * BLOCKS + k.rank;
}

__device__ static int count_own(const chunks &k) {
    return k.alone ? BUFFERS * OWN_TILES : OWN_TILES;
}

/* ---- the cluster ---- */

__device__ static int cluster_rank(void) {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}

__device__ static void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ static void put_remote(const float *at, int rank, float x) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "st.shared::cluster.f32 [there], %2;}" ::"r"(ml_smem(at)),
                 "r"(rank), "f"(x)
                 : "memory");
}

/* ---- copies ---- */

/* The lane's page of a chunk; 0 if it has no keys of lo .. hi. */
__device__ static int32_t page_of(const chunks &k, int chunk) {
    int first = k.base + chunk * CHUNK + (int)threadIdx.x % 32 * ML_PAGE;
    return first <= k.hi && first + ML_PAGE > k.lo ? k.page[first / ML_PAGE] : 0;
}

/* Keys of the block's tiles, a page by each warp; those outside lo .. hi become zero. */
template <int D>
__device__ static void fetch_keys(cluster_smem<D> &smem, const attn_call<bf16> &c,
                                  const chunks &k, int chunk, int32_t id) {
    const int per_row = D / 8, at_once = 32 / per_row;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int row = lane / per_row, e = lane % per_row * 8;

    for (int i = 0; i < count_own(k); i++) {
        int page = own_tile(k, i) * (ML_KTILE / ML_PAGE) + warp;
        int first = k.base + chunk * CHUNK + page * ML_PAGE;
        int32_t own = __shfl_sync(0xffffffffu, id, page);
        if (first - warp * ML_PAGE > k.hi)
            break;
        const bf16 *from = c.kpage + (((int64_t)own * c.n_kv + k.head) * ML_PAGE + row) * D;
        bf16 *to = smem.keys[chunk % BUFFERS * OWN_TILES + i] +
                   (warp * ML_PAGE + row) * attn_tile<D>::ld + e;
#pragma unroll
        for (int r = 0; r < ML_PAGE; r += at_once) {
            int key = first + row + r;
            bool there = key >= k.lo && key <= k.hi;
            ml_copy_async(to + r * attn_tile<D>::ld, there ? from + r * D + e : c.kpage,
                          there);
        }
    }
}

/* The block's columns of all values of a chunk, in whole tiles. */
template <int D>
__device__ static void fetch_values(cluster_smem<D> &smem, const attn_call<bf16> &c,
                                    const chunks &k, int chunk, int32_t id) {
    const int ld = cluster_smem<D>::value_ld, columns = cluster_smem<D>::columns;
    const int per_key = columns / 8, at_once = ATTN_THREADS / per_key;
    int e = (int)threadIdx.x % per_key * 8, own = (int)threadIdx.x / per_key;
    int first = k.base + chunk * CHUNK;

    for (int i = 0; i < CHUNK && first + i / ML_KTILE * ML_KTILE <= k.hi; i += at_once) {
        int at = i + own, key = first + at;
        int64_t page = __shfl_sync(0xffffffffu, id, at / ML_PAGE);
        bool there = key >= k.lo && key <= k.hi;
        const bf16 *from = c.vpage +
                           ((page * c.n_kv + k.head) * ML_PAGE + at % ML_PAGE) * D +
                           k.rank * columns + e;
        ml_copy_async(smem.values[chunk % BUFFERS] + at * ld + e, there ? from : c.vpage,
                      there);
    }
}

/* Two groups of copies, empty after the last chunk.  id: the lane's page. */
template <int D>
__device__ static void fetch(cluster_smem<D> &smem, const attn_call<bf16> &c,
                             const chunks &k, int chunk, int32_t id) {
    bool there = k.base + chunk * CHUNK <= k.hi;

    if (there)
        fetch_keys(smem, c, k, chunk, id);
    ml_copy_commit();
    if (there)
        fetch_values(smem, c, k, chunk, id);
    ml_copy_commit();
}

/* ---- scores and sums ---- */

/* Scores of the warp's 16 keys of a tile, before scaling, to all blocks that need them. */
template <int D>
__device__ static void put_scores(cluster_smem<D> &smem, const uint32_t (&q)[D / 16][1][2],
                                  const chunks &k, int chunk, int i) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bf16 *keys = smem.keys[chunk % BUFFERS * OWN_TILES + i];
    float *to = smem.scores[chunk % BUFFERS][own_tile(k, i)] + lane % 4 * 2 * DECODE_LD +
                warp * DECODE_OWN + lane / 4;
    uint32_t a[D / 16][4];
    float s[4] = {};

#pragma unroll
    for (int j = 0; j < D / 16; j++)
        attn_left<D>(a[j], keys, warp * DECODE_OWN, j * 16);
#pragma unroll
    for (int j = 0; j < D / 16; j++)
        ml_mma(s, a[j], q[j][0][0], q[j][0][1]);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float *at = to + n % 2 * DECODE_LD + n / 2 * 8;
        if (k.alone)
            *at = s[n];
        for (int r = 0; r < BLOCKS && !k.alone; r++)
            put_remote(at, r, s[n]);
    }
}

/* Adds N adjacent tiles' values, of the warp's 16 columns, times the weights.  All maxima first: then the
 * weights of a tile do not wait for those of the one before. */
template <int D, int N>
__device__ static void add_tiles(float (&acc)[1][1][4], decode_state<1> &x,
                                 const cluster_smem<D> &smem, const attn_call<bf16> &c,
                                 const chunks &k, int chunk, int tile) {
    const int ld = cluster_smem<D>::value_ld;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bf16 *values = smem.values[chunk % BUFFERS] + (tile * ML_KTILE + lane % 16) * ld +
                         warp * 16 + lane / 16 * 8;
    float s[N][8][2], top = x.m[0], tops[N];

#pragma unroll
    for (int n = 0; n < N; n++) {
        decode_load_scores(s[n], smem.scores[chunk % BUFFERS][tile + n], 0);
        decode_mask(s[n], k.base + chunk * CHUNK + (tile + n) * ML_KTILE, k.lo, k.hi, c);
        tops[n] = top = decode_top(s[n], top);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        decode_weigh<1>(x, s[n], 0, tops[n]);
        decode_rescale<1, 1>(acc, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t b[4];
            ml_ldmatrix4_trans(b, values + (n * ML_KTILE + i * 16) * ld);
            uint32_t a[4] = { b[0], b[2], b[1], b[3] };
            ml_mma(acc[0][0], a, ml_pack2(s[n][2 * i][0], s[n][2 * i][1]),
                   ml_pack2(s[n][2 * i + 1][0], s[n][2 * i + 1][1]));
        }
    }
}

/* Of a chunk, up to key hi. */
template <int D>
__device__ static void add_chunk(float (&acc)[1][1][4], decode_state<1> &x,
                                 const cluster_smem<D> &smem, const attn_call<bf16> &c,
                                 const chunks &k, int chunk) {
    int left = k.hi - (k.base + chunk * CHUNK);
    int n = left < CHUNK - 1 ? left / ML_KTILE + 1 : TILES, tile = 0;

    for (; tile + 4 <= n; tile += 4)
        add_tiles<D, 4>(acc, x, smem, c, k, chunk, tile);
    for (; tile < n; tile++)
        add_tiles<D, 1>(acc, x, smem, c, k, chunk, tile);
}

template <int D>
__global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(ATTN_THREADS, 1)
    cluster_forward(attn_call<bf16> c) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    cluster_smem<D> &smem = *(cluster_smem<D> *)smem_bytes;
    int seq = (int)blockIdx.x / BLOCKS, warp = (int)threadIdx.x / 32;
    bool adds = warp < cluster_smem<D>::columns / 16;
    chunks k = {
        c.page + c.page_start[seq], 0, 0, 0, (int)blockIdx.y, cluster_rank(), false
    };
    uint32_t q[D / 16][1][2];
    float acc[1][1][4] = {};
    decode_state<1> x = decode_open<1>(c);
    int32_t id;

    ml_grid_release();
    cluster_arrive();
    k.hi = c.pos[seq]; /* no kernel of the step writes the batch: read before the wait */
    k.lo = attn_first_key(c, k.hi);
    k.base = k.lo / ML_KTILE * ML_KTILE;
    k.alone = k.hi - k.base < BUFFERS * OWN_TILES * ML_KTILE;
    id = page_of(k, 0);
    ml_grid_wait();
    cluster_wait(); /* all blocks have begun: their memory may be written */
    if (k.hi < 0)   /* padding */
        return;
    attn_fetch_rows<D, DECODE_ROWS>(smem.rows, c.q, c, seq, k.head, 0, c.group);
    fetch(smem, c, k, 0, id);
    for (int chunk = 0; k.base + chunk * CHUNK <= k.hi; chunk++) {
        int first = k.base + chunk * CHUNK;

        fetch(smem, c, k, chunk + 1, page_of(k, chunk + 1));
        ml_copy_wait<3>();
        __syncthreads(); /* the keys of this chunk arrived */
        if (chunk == 0)
            decode_queries<D, 1>(q, smem.rows);
        for (int i = 0; i < count_own(k); i++)
            if (first + own_tile(k, i) * ML_KTILE <= k.hi)
                put_scores(smem, q, k, chunk, i);
        ml_copy_wait<2>();
        if (k.alone) {
            __syncthreads();
        } else {
            cluster_arrive();
            cluster_wait();
        } /* so did its values, and all scores */
        if (adds)
            add_chunk(acc, x, smem, c, k, chunk);
        __syncthreads(); /* a buffer is free */
    }
    if (adds)
        decode_put_rows<1, 1, false>(x, acc, c, seq, k.head,
                                     k.rank * cluster_smem<D>::columns + warp * 16,
                                     k.rank == 0 && warp == 0);
}

template <int D> static void launch(ml_cuda_stream *s, const attn_call<bf16> &c) {
    const int bytes = (int)sizeof(cluster_smem<D>);

    ml_cuda_note(s,
                 cudaFuncSetAttribute(cluster_forward<D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 "attention");
    ml_cuda_launch(s, "attention", cluster_forward<D>,
                   dim3((unsigned)(c.n_seq * BLOCKS), (unsigned)c.n_kv), ATTN_THREADS,
                   (size_t)bytes, c);
}

#endif

bool ml_attn_decode_cluster_supports(const ml_cuda_stream *s, const attn_call<bf16> &c) {
    return s->wgmma && !c.format && c.softcap == 0.0f && c.group <= ROWS &&
           (c.d == 64 || c.d == 128) && c.dv == c.d && c.vpage &&
           c.n_seq * c.n_kv * BLOCKS <= (int)s->sms;
}

void ml_attn_decode_cluster(ml_cuda_stream *s, const attn_call<bf16> &c) {
#if ML_WGMMA
    c.d == 64 ? launch<64>(s, c) : launch<128>(s, c);
#else
    (void)s, (void)c;
#endif
}
