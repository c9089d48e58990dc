/* moe_wgmma.cu - the grouped GEMM of experts, or heads, on Hopper: wgmma and tensor copies.
 *
 * Every output is one chain of k16 products over ascending k, from +0, as in moe_mma.cu:
 * the bits are the same.  Blocks are persistent and take tiles of 128 x BN outputs in turn.
 * One warp issues the copies of the stages ahead, those of the next tile included; two
 * warpgroups (teams) multiply, 64 rows each.
 *
 * BN 256 reads a quarter less from the L2 cache, which limits BN 128.  With BN 128 two blocks
 * share an SM, and one multiplies while the other stores: for outputs that are added to, for
 * weight gradients, whose sums are short, and for widths that BN 256 would not fill. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/moe/moe.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    BM = 128,
    BK = 64,
    TEAMS = 2,
    TEAM_THREADS = TEAMS * ML_WARPGROUP,
    THREADS = TEAM_THREADS + 32 /* the last warp copies */
};

template <int BN> struct expert_smem {
    static const int STAGES = BN == 256 ? 4 : 3, BLOCKS = BN == 256 ? 1 : 2; /* of an SM */

    struct {
        bf16 a[BM * BK], b[BN * BK];
    } stage[STAGES];
    ml_barrier full[STAGES], empty[STAGES];
    int first_row[ML_MOE_EXPERTS + 1];  /* of each expert */
    int first_tile[ML_MOE_EXPERTS + 1]; /* of BM rows */
};

extern __shared__ __align__(1024) unsigned char expert_bytes[];

/* A tile: its expert and the expert's rows, the first row and column of its outputs. */
struct tile {
    int expert, first_row, rows;
    int m0, n0, m, k;
};

/* Numbers the tiles of all experts, whose rows only the device knows; a warp. */
template <int BN>
__device__ static void number_tiles(expert_smem<BN> &smem, const int32_t *start,
                                    int n_expert) {
    int lane = (int)threadIdx.x % 32, before = 0;

    for (int base = 0; base <= n_expert; base += 32) {
        int i = base + lane, first = start[i < n_expert ? i : n_expert];
        int rows = i < n_expert ? start[i + 1] - first : 0;
        int tiles = (rows + BM - 1) / BM, sum = tiles;
        for (int w = 1; w < 32; w <<= 1) {
            int below = __shfl_up_sync(0xffffffffu, sum, w);
            if (lane >= w)
                sum += below;
        }
        if (i <= n_expert) {
            smem.first_row[i] = first;
            smem.first_tile[i] = before + sum - tiles;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* The last expert that begins at tile `at` or before: it has rows. */
__device__ static int expert_of(const int *first_tile, int n_expert, int at) {
    int low = 0, high = n_expert;

    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first_tile[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tiles of one expert are adjacent, and of these those with the same rows: they share what
 * they read.  False: there is no such tile. */
template <int BN, class OUT>
__device__ static bool find_tile(tile &t, const expert_smem<BN> &smem,
                                 const ml_expert_gemm<bf16, OUT> &g, int at) {
    int n_wide = (int)((g.n + BN - 1) / BN), of_rows = at / n_wide;

    if (ml_expert_is_fixed(g)) {
        int of_expert = (int)(((g.m ? g.m : g.rows) + BM - 1) / BM);
        t.expert = of_rows / of_expert;
        t.m0 = of_rows % of_expert * BM;
        if (t.expert >= g.n_expert)
            return false;
        t.first_row = g.start ? smem.first_row[t.expert] : 0;
        t.rows = g.start ? smem.first_row[t.expert + 1] - t.first_row : (int)g.rows;
    } else {
        if (of_rows >= smem.first_tile[g.n_expert])
            return false;
        t.expert = expert_of(smem.first_tile, g.n_expert, of_rows);
        t.m0 = (of_rows - smem.first_tile[t.expert]) * BM;
        t.first_row = smem.first_row[t.expert];
        t.rows = smem.first_row[t.expert + 1] - t.first_row;
    }
    t.n0 = at % n_wide * BN;
    t.m = g.m ? (int)g.m : t.rows;
    t.k = g.k ? (int)g.k : t.rows;
    return true;
}

/* Starts the copies of an operand's rows from `row` on and k from k0 on.  A transposed one
 * is copied panel by panel: 64 rows of k, 64 columns. */
template <bool TRANSPOSED, int ROWS>
__device__ static void fetch(bf16 *to, const CUtensorMap *map, int row, int k0,
                             int first_row, int matrix, ml_barrier *full) {
    if (!TRANSPOSED)
        ml_tensor_copy(to, map, k0, first_row + row, matrix, full);
    for (int i = 0; TRANSPOSED && i < ROWS / 64; i++)
        ml_tensor_copy(to + i * ML_PANEL, map, row + i * 64, first_row + k0, matrix, full);
}

/* The stages of a tile, of which the first is number n of the block's; returns the next. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static int copy_stages(expert_smem<BN> &smem, const CUtensorMap *a,
                                  const CUtensorMap *b, const tile &t,
                                  const ml_expert_gemm<bf16, OUT> &g, int n) {
    const int STAGES = expert_smem<BN>::STAGES;

    for (int k0 = 0; k0 < t.k; k0 += BK, n++) {
        int at = n % STAGES;
        if (n >= STAGES)
            ml_barrier_wait(&smem.empty[at], (unsigned)(n / STAGES - 1) & 1);
        ml_barrier_expect(&smem.full[at], sizeof smem.stage[0]);
        fetch<A_TRANSPOSED, BM>(smem.stage[at].a, a, t.m0, k0, g.a_row ? t.first_row : 0,
                                g.a_expert ? t.expert : 0, &smem.full[at]);
        fetch<B_TRANSPOSED, BN>(smem.stage[at].b, b, t.n0, k0, g.b_row ? t.first_row : 0,
                                g.b_expert ? t.expert : 0, &smem.full[at]);
    }
    return n;
}

/* A sum over an expert's rows ends within a stage: the rows of the next expert there become
 * zero, in panels of 64 rows. */
__device__ static void clear_rows(bf16 *panels, int n_panel, int first) {
    int per_panel = (64 - first) * 8;

    for (int i = (int)threadIdx.x; i < n_panel * per_panel; i += TEAM_THREADS)
        *(uint4 *)(panels + i / per_panel * ML_PANEL + first * 64 + i % per_panel * 8) =
            make_uint4(0, 0, 0, 0);
}

/* Of the threads of all teams. */
__device__ static void sync_teams(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)TEAM_THREADS) : "memory");
}

template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void product(float (&acc)[16][4], uint32_t a, uint32_t b) {
    ml_wgmma_128<A_TRANSPOSED, B_TRANSPOSED>(acc, a, b);
}

template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void product(float (&acc)[32][4], uint32_t a, uint32_t b) {
    ml_wgmma_256<A_TRANSPOSED, B_TRANSPOSED>(acc, a, b);
}

template <int PENDING> __device__ static void wait_products(float (&acc)[16][4]) {
    ml_wgmma_wait_128<PENDING>(acc);
}

template <int PENDING> __device__ static void wait_products(float (&acc)[32][4]) {
    ml_wgmma_wait_256<PENDING>(acc);
}

/* The stages of a tile in which a team has no rows: the other one gets the tensor cores.  All
 * threads wait, and for each other, since the number of a barrier's phase has but one bit. */
template <int BN>
__device__ static int pass_stages(expert_smem<BN> &smem, int k, int team, int n) {
    const int STAGES = expert_smem<BN>::STAGES;

    for (int k0 = 0; k0 < k; k0 += BK, n++) {
        ml_barrier_wait(&smem.full[n % STAGES], (unsigned)(n / STAGES) & 1);
        asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"((int)ML_WARPGROUP) : "memory");
        if (threadIdx.x % ML_WARPGROUP == 0)
            ml_barrier_arrive(&smem.empty[n % STAGES]);
    }
    return n;
}

/* The same of the teams.  A stage is free when the products that read it are done. */
template <int BN, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static int multiply(float (&acc)[BN / 8][4], expert_smem<BN> &smem,
                               const tile &t, int team, bool rows_end, int n) {
    const int STAGES = expert_smem<BN>::STAGES;
    bool leader = threadIdx.x % ML_WARPGROUP == 0;

    for (int k0 = 0; k0 < t.k; k0 += BK, n++) {
        int at = n % STAGES, left = t.k - k0;
        bf16 *a = smem.stage[at].a, *b = smem.stage[at].b;
        uint32_t pa, pb;
        ml_barrier_wait(&smem.full[at], (unsigned)(n / STAGES) & 1);
        if (rows_end && left < BK) {
            clear_rows(a, BM / 64, left);
            clear_rows(b, BN / 64, left);
            ml_wgmma_publish();
            sync_teams();
        }
        pa = ml_panel(a + team * ML_PANEL);
        pb = B_TRANSPOSED ? ml_panels_wide(ml_panel(b), ML_PANEL * 2) : ml_panel(b);
        ml_wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
            product<A_TRANSPOSED, B_TRANSPOSED>(
                acc, A_TRANSPOSED ? ml_panel_rows(pa, 0, k) : ml_panel_columns(pa, k),
                B_TRANSPOSED ? ml_panel_rows(pb, 0, k) : ml_panel_columns(pb, k));
        ml_wgmma_commit();
        wait_products<1>(acc);
        if (k0 > 0 && leader)
            ml_barrier_arrive(&smem.empty[(n - 1) % STAGES]);
    }
    wait_products<0>(acc);
    if (t.k > 0 && leader)
        ml_barrier_arrive(&smem.empty[(n - 1) % STAGES]);
    return n;
}

/* Four lanes share a row, two columns each of four m16n8 tiles: afterwards each has the
 * eight columns of one tile; and the other way round. */
__device__ static void exchange(uint32_t (&v)[4]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit <<= 1) {
        bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int lo = bit == 1 ? 2 * i : i, hi = lo + bit;
            uint32_t got =
                __shfl_xor_sync(0xffffffffu, upper ? v[lo] : v[hi], (unsigned)bit);
            v[lo] = upper ? got : v[lo];
            v[hi] = upper ? v[hi] : got;
        }
    }
}

/* A piece: the m16n8 tiles of which each of the four lanes that share a row stores 16 bytes. */
template <class OUT> struct piece { static const int tiles = 8 / (int)sizeof(OUT); };

/* The first column of a lane's 16 bytes. */
__device__ static int piece_column(bf16) {
    return (int)threadIdx.x % 4 * 8;
}

__device__ static int piece_column(float) {
    return (int)threadIdx.x % 2 * 8 + (int)threadIdx.x % 4 / 2 * 4;
}

/* A lane's bytes of a piece, which are added to `old`; row r of the two that a lane has. */
__device__ static uint4 pack_piece(bf16, const float (*acc)[4], int r, bool add,
                                   uint4 old) {
    uint32_t v[4] = { old.x, old.y, old.z, old.w };

    if (add)
        exchange(v);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float x = acc[j][2 * r], y = acc[j][2 * r + 1];
        if (add) {
            x += __uint_as_float(v[j] << 16);
            y += __uint_as_float(v[j] & 0xffff0000u);
        }
        v[j] = ml_pack2(x, y);
    }
    exchange(v);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* In f32 lanes exchange halves of two tiles; nothing is added (put_sums). */
__device__ static uint4 pack_piece(float, const float (*acc)[4], int r, bool, uint4) {
    const float *even = acc[0] + 2 * r, *next = acc[1] + 2 * r;
    bool odd = threadIdx.x & 1;
    float x = odd ? next[0] : even[0], y = odd ? next[1] : even[1];
    float u = __shfl_xor_sync(0xffffffffu, odd ? even[0] : next[0], 1);
    float v = __shfl_xor_sync(0xffffffffu, odd ? even[1] : next[1], 1);
    float4 sum = make_float4(odd ? u : x, odd ? v : y, odd ? x : u, odd ? y : v);

    return make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y),
                      __float_as_uint(sum.z), __float_as_uint(sum.w));
}

template <int N, class OUT>
__device__ static void add_bias(float (&acc)[N][4], const ml_expert_gemm<bf16, OUT> &g,
                                const tile &t) {
    const float *bias = g.bias + t.expert * g.n;
#pragma unroll
    for (int j = 0; j < N; j++) {
        int col = t.n0 + j * 8 + (int)threadIdx.x % 4 * 2;
        float b0 = col < g.n ? bias[col] : 0.0f, b1 = col < g.n ? bias[col + 1] : 0.0f;
        acc[j][0] += b0;
        acc[j][1] += b1;
        acc[j][2] += b0;
        acc[j][3] += b1;
    }
}

/* Four pieces of a row, from column `col` on: all loads of what is added to come first. */
template <class OUT>
__device__ static void put_pieces(const ml_expert_gemm<bf16, OUT> &g, OUT *row, bool there,
                                  int col, const float (*acc)[4], int r) {
    const int tiles = piece<OUT>::tiles;
    uint4 old[4] = {};

    col += piece_column(OUT());
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (g.add && there && col + i * tiles * 8 < g.n)
            old[i] = *(const uint4 *)(row + col + i * tiles * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = pack_piece(OUT(), acc + i * tiles, r, g.add, old[i]);
        if (there && col + i * tiles * 8 < g.n)
            *(uint4 *)(row + col + i * tiles * 8) = v;
    }
}

/* Adds 32 columns of a row in f32, 8 bytes a lane, as in a block for each tile (grid_size): weight
 * gradients, for which 16 bytes a lane in persistent blocks took 1.2 ms instead of 0.75. */
__device__ static void put_sums(const ml_expert_gemm<bf16, float> &g, float *row,
                                bool there, int col, const float (*acc)[4], int r) {
    float old[4][2];

#pragma unroll
    for (int j = 0; j < 4; j++) {
        int at = col + j * 8 + (int)threadIdx.x % 4 * 2;
        if (there && at < g.n)
            ml_load(old[j], row + at);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int at = col + j * 8 + (int)threadIdx.x % 4 * 2;
        float v[2] = { acc[j][2 * r] + old[j][0], acc[j][2 * r + 1] + old[j][1] };
        if (there && at < g.n)
            ml_store(row + at, v);
    }
}

template <int N>
__device__ static void put_row(const ml_expert_gemm<bf16, float> &g, float *row, bool there,
                               int col, const float (&acc)[N][4], int r) {
#pragma unroll
    for (int j = 0; g.add && j < N; j += 4)
        put_sums(g, row, there, col + j * 8, acc + j, r);
#pragma unroll
    for (int j = 0; !g.add && j < N; j += 4 * piece<float>::tiles)
        put_pieces(g, row, there, col + j * 8, acc + j, r);
}

template <int N>
__device__ static void put_row(const ml_expert_gemm<bf16, bf16> &g, bf16 *row, bool there,
                               int col, const float (&acc)[N][4], int r) {
#pragma unroll
    for (int j = 0; j < N; j += 4 * piece<bf16>::tiles)
        put_pieces(g, row, there, col + j * 8, acc + j, r);
}

template <int N, class OUT>
__device__ static void put(float (&acc)[N][4], const ml_expert_gemm<bf16, OUT> &g,
                           const tile &t) {
    OUT *c = g.c + (ml_expert_is_fixed(g) ? t.expert * g.c_expert : t.first_row * g.ldc);
    int row = t.m0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;

    if (g.bias)
        add_bias(acc, g, t);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        OUT *to = c + (int64_t)(row + 8 * r) * g.ldc;
        bool there = row + 8 * r < t.m;
        put_row(g, to, there, t.n0, acc, r);
    }
}

template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void copy_tiles(expert_smem<BN> &smem, const CUtensorMap *a,
                                  const CUtensorMap *b,
                                  const ml_expert_gemm<bf16, OUT> &g) {
    tile t;

    for (int at = (int)blockIdx.x, n = 0; find_tile<BN>(t, smem, g, at);
         at += (int)gridDim.x)
        n = copy_stages<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, a, b, t, g, n);
}

template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void multiply_tiles(expert_smem<BN> &smem, int team,
                                      const ml_expert_gemm<bf16, OUT> &g) {
    tile t;

    for (int at = (int)blockIdx.x, n = 0; find_tile<BN>(t, smem, g, at);
         at += (int)gridDim.x) {
        float acc[BN / 8][4] = {};
        if (g.k && t.m0 + team * 64 >= t.m) {
            n = pass_stages<BN>(smem, t.k, team, n);
            continue;
        }
        n = multiply<BN, A_TRANSPOSED, B_TRANSPOSED>(acc, smem, t, team, !g.k, n);
        if (ml_expert_has_outputs(g, t.rows))
            put(acc, g, t);
    }
}

template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__global__ void __launch_bounds__(THREADS, expert_smem<BN>::BLOCKS)
    expert_wgmma(const __grid_constant__ CUtensorMap a,
                 const __grid_constant__ CUtensorMap b, ml_expert_gemm<bf16, OUT> g) {
    expert_smem<BN> &smem = *(expert_smem<BN> *)expert_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < expert_smem<BN>::STAGES; i++) {
            ml_barrier_init(&smem.full[i]);
            ml_barrier_init(&smem.empty[i], TEAMS);
        }
        ml_barrier_init_end();
    }
    ml_grid_release();
    ml_grid_wait();
    if (team == TEAMS && g.start)
        number_tiles(smem, g.start, g.n_expert);
    __syncthreads();
    if (team < TEAMS)
        multiply_tiles<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, team, g);
    else if (threadIdx.x == TEAM_THREADS)
        copy_tiles<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, &a, &b, g);
}

/* ---- launching ---- */

/* The matrices of an operand: `rows` rows of m or n by k, or `k` rows of `rows` numbers if
 * transposed; one for each expert, or one for all. */
static ml_tensor_box operand_box(const bf16 *at, bool transposed, int64_t rows, int64_t k,
                                 int64_t stride, int64_t expert, int n_expert,
                                 int box_rows) {
    ml_tensor_box x = {};

    x.at = at;
    x.cols = transposed ? rows : k;
    x.rows = transposed ? k : rows;
    x.count = expert ? n_expert : 1;
    x.row_stride = stride;
    x.stride = expert ? expert : stride * x.rows;
    x.box_cols = 64;
    x.box_rows = transposed ? BK : box_rows;
    return x;
}

/* As many blocks as run at a time, unless there are fewer tiles; a block for each tile of a
 * weight's gradient that is added to. */
template <int BN, class OUT>
static unsigned grid_size(const ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g,
                          int64_t rows) {
    dim3 tiles = ml_expert_grid(g, rows, BM, BN);
    unsigned all = tiles.x * tiles.y * tiles.z, most = s->sms * expert_smem<BN>::BLOCKS;
    bool persistent = g.k || !g.add; /* see put_sums */

    return all < most || !persistent ? all : most;
}

/* False: there is no tensor map of such an operand. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
static bool launch(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    auto kernel = expert_wgmma<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>;
    ml_tensor_box xa =
        operand_box(g.a, A_TRANSPOSED, g.m ? g.m : rows, g.k ? g.k : rows,
                    A_TRANSPOSED ? g.a_k : g.a_m, g.a_expert, g.n_expert, BM);
    ml_tensor_box xb =
        operand_box(g.b, B_TRANSPOSED, g.n, g.k ? g.k : rows, B_TRANSPOSED ? g.b_k : g.b_n,
                    g.b_expert, g.n_expert, BN);
    CUtensorMap a, b;

    if (ml_tensor_map(&a, &xa) != cudaSuccess || ml_tensor_map(&b, &xb) != cudaSuccess)
        return false;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(expert_smem<BN>)),
                 "moe-linear");
    ml_cuda_launch(s, "moe-linear", kernel, dim3(grid_size<BN>(s, g, rows)), THREADS,
                   sizeof(expert_smem<BN>), a, b, g);
    return true;
}

/* Whether tiles of 256 columns are faster: they leave less than an eighth of them empty, and
 * outputs are not added to, since no other block multiplies while one waits for old values. */
static bool takes_wide(const ml_expert_gemm<bf16, bf16> &g) {
    return !g.add && g.n > (g.n + 255) / 256 * 224;
}

template <bool B_TRANSPOSED>
static bool by_width(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    return takes_wide(g) ? launch<256, bf16, false, B_TRANSPOSED>(s, g, rows)
                         : launch<128, bf16, false, B_TRANSPOSED>(s, g, rows);
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    return g.b_k == 1 ? by_width<false>(s, g, rows) : by_width<true>(s, g, rows);
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g,
                     int64_t rows) {
    return launch<128, float, true, true>(s, g, rows);
}
