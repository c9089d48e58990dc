/* moe_wgmma.cu - the grouped GEMM of experts, or heads, on Hopper: wgmma and tensor copies.
 *
 * Every output is one chain of k16 products over ascending k, from +0, as in moe_mma.cu:
 * the bits are the same.  Blocks are persistent: one thread takes tiles of 128 x BN outputs and
 * issues the copies of the stages ahead, those of the next tile included; two warpgroups (teams)
 * multiply, 64 rows each.
 *
 * After its first tile a block takes the next one that no block has, as a counter says: tiles of a
 * sum over an expert's rows take as long as it has rows, and blocks that got long ones get fewer.
 * There the experts with the most rows come first, so that blocks end with short tiles.  Which
 * block has a tile does not change its bits.
 *
 * BN 256 reads a quarter less from the L2 cache, which limits BN 128.  bf16 outputs go from
 * registers to memory; then, with BN 128, two blocks share an SM, and one multiplies while the other
 * stores: for outputs that are added to, and for widths that BN 256 would not fill.
 *
 * f32 outputs are gradients of weights: sums over few rows, so that storing takes nearly as long
 * as multiplying.  A team writes them to boxes in shared memory, from which tensor copies (TMA) store
 * them, or add them to those in memory, while the team multiplies its next tile.  Each output has
 * one writer: the addition, in the L2 cache, has the bits of one here, except that subnormal
 * numbers, what is added and the sum, are flushed to zeros. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/moe/moe.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    BM = 128,
    BK = 64,
    TEAMS = 2,
    TEAM_THREADS = TEAMS * ML_WARPGROUP,
    THREADS = TEAM_THREADS + 32, /* the last warp copies */
    BOX_ROWS = 64,               /* a team's f32 outputs on the way to memory */
    BOX_COLS = 32,
    BOXES = 4, /* of a team; a tile has more, one after the other */
    TILES = 4, /* that the copying thread may be ahead */
    INDEX_BITS = 10,
    MOST_ROWS = (1 << (32 - INDEX_BITS)) - 1, /* that a key of the order has space for */
    COUNTERS = 256
};

/* Where outputs in f32 wait for their copies, and the order of the experts in their sums. */
template <class OUT> struct staging {};
template <> struct staging<float> {
    float box[TEAMS][BOXES][BOX_ROWS * BOX_COLS];
    uint32_t key[ML_MOE_EXPERTS + 32]; /* of an expert: its rows, then its index */
    int16_t order[ML_MOE_EXPERTS];     /* experts by descending keys */
};

/* A tile: its expert (-1: there are no more) and the expert's rows, the first row and column of its
 * outputs. */
struct __align__(16) tile {
    int expert, first_row, rows;
    int m0, n0, m, k;
};

template <int BN, class OUT> struct expert_smem {
    static const bool STAGED = sizeof(OUT) == sizeof(float);
    static const int BLOCKS = BN == 256 || STAGED ? 1 : 2; /* of an SM */
    static const int STAGES = BLOCKS == 2 || (BN == 256 && STAGED) ? 3 : 4;

    struct {
        bf16 a[BM * BK], b[BN * BK];
    } stage[STAGES];
    staging<OUT> outputs; /* aligned to 1024, as stages are */
    ml_barrier full[STAGES], empty[STAGES];
    tile tiles[TILES];
    ml_barrier tile_full[TILES], tile_empty[TILES];
    int first_row[ML_MOE_EXPERTS + 1];  /* of each expert */
    int first_tile[ML_MOE_EXPERTS + 1]; /* of BM rows */
};

extern __shared__ __align__(1024) unsigned char expert_bytes[];

/* Of the operands, and of outputs in f32. */
struct expert_maps {
    CUtensorMap a, b, c;
};

/* Tiles that blocks have taken after their first ones, of each stream.  A launch begins and ends
 * with zero. */
__device__ static unsigned expert_taken[COUNTERS];

/* Numbers the tiles of all experts, whose rows only the device knows, and sets their keys; a warp. */
template <int BN, class OUT>
__device__ static void number_tiles(expert_smem<BN, OUT> &smem, const int32_t *start,
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
        if constexpr (expert_smem<BN, OUT>::STAGED) /* behind the experts: 0 */
            smem.outputs.key[i] =
                i < n_expert ? (uint32_t)min(rows, (int)MOST_ROWS) << INDEX_BITS | i : 0;
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* Keys differ: an expert's place is the number of greater ones.  All threads. */
__device__ static void order_experts(staging<float> &s, int n_expert) {
    static_assert(ML_MOE_EXPERTS <= 1 << INDEX_BITS, "indices of experts");
    for (int i = (int)threadIdx.x; i < n_expert; i += THREADS) {
        uint32_t own = s.key[i];
        int place = 0;
#pragma unroll 4
        for (int j = 0; j < n_expert; j += 4) {
            uint4 other = *(const uint4 *)(s.key + j);
            place += (other.x > own) + (other.y > own) + (other.z > own) + (other.w > own);
        }
        s.order[place] = (int16_t)i;
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

/* Tiles below each other and next to each other; the former of an expert, if that is fixed. */
template <class OUT> __device__ static int tiles_high(const ml_expert_gemm<bf16, OUT> &g) {
    return (int)(((g.m ? g.m : g.rows) + BM - 1) / BM);
}

template <int BN, class OUT>
__device__ static int tiles_wide(const ml_expert_gemm<bf16, OUT> &g) {
    return (int)((g.n + BN - 1) / BN);
}

template <int BN, class OUT>
__device__ static int count_tiles(const expert_smem<BN, OUT> &smem,
                                  const ml_expert_gemm<bf16, OUT> &g) {
    int high =
        ml_expert_is_fixed(g) ? g.n_expert * tiles_high(g) : smem.first_tile[g.n_expert];
    return high * tiles_wide<BN>(g);
}

/* Tile `at` of all.  Those of one expert are adjacent, and of these those with the same rows:
 * they share what they read. */
template <int BN, class OUT>
__device__ static tile find_tile(const expert_smem<BN, OUT> &smem,
                                 const ml_expert_gemm<bf16, OUT> &g, int at) {
    int n_wide = tiles_wide<BN>(g), of_rows = at / n_wide;
    tile t;

    if (ml_expert_is_fixed(g)) {
        t.expert = of_rows / tiles_high(g);
        t.m0 = of_rows % tiles_high(g) * BM;
        if constexpr (expert_smem<BN, OUT>::STAGED)
            t.expert = g.start ? smem.outputs.order[t.expert] : t.expert;
        t.first_row = g.start ? smem.first_row[t.expert] : 0;
        t.rows = g.start ? smem.first_row[t.expert + 1] - t.first_row : (int)g.rows;
    } else {
        t.expert = expert_of(smem.first_tile, g.n_expert, of_rows);
        t.m0 = (of_rows - smem.first_tile[t.expert]) * BM;
        t.first_row = smem.first_row[t.expert];
        t.rows = smem.first_row[t.expert + 1] - t.first_row;
    }
    t.n0 = at % n_wide * BN;
    t.m = g.m ? (int)g.m : t.rows;
    t.k = g.k ? (int)g.k : t.rows;
    return t;
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

/* The rows and columns of a tile from k0 on, as stage n of the block. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void copy_stage(expert_smem<BN, OUT> &smem, const expert_maps &maps,
                                  const tile &t, const ml_expert_gemm<bf16, OUT> &g, int k0,
                                  int n) {
    const int STAGES = expert_smem<BN, OUT>::STAGES;
    int at = n % STAGES;

    if (n >= STAGES)
        ml_barrier_wait(&smem.empty[at], (unsigned)(n / STAGES - 1) & 1);
    ml_barrier_expect(&smem.full[at], sizeof smem.stage[0]);
    fetch<A_TRANSPOSED, BM>(smem.stage[at].a, &maps.a, t.m0, k0, g.a_row ? t.first_row : 0,
                            g.a_expert ? t.expert : 0, &smem.full[at]);
    fetch<B_TRANSPOSED, BN>(smem.stage[at].b, &maps.b, t.n0, k0, g.b_row ? t.first_row : 0,
                            g.b_expert ? t.expert : 0, &smem.full[at]);
}

/* The stages of a tile, of which the first is number n of the block's; returns the next.  Takes the
 * block's next tile before the last stage: the latency passes while that one waits for its place,
 * and no tile is taken long before it begins. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static int copy_stages(expert_smem<BN, OUT> &smem, const expert_maps &maps,
                                  const tile &t, const ml_expert_gemm<bf16, OUT> &g, int n,
                                  unsigned *counter, unsigned &taken) {
    int k0 = 0;

    for (; k0 + BK < t.k; k0 += BK, n++)
        copy_stage<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, maps, t, g, k0, n);
    taken = atomicAdd(counter, 1);
    if (t.k > 0)
        copy_stage<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, maps, t, g, k0, n++);
    return n;
}

/* Whether this thread signals for its team. */
__device__ static bool leads_team(void) {
    return threadIdx.x % ML_WARPGROUP == 0;
}

/* Of the threads of a team. */
__device__ static void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"((int)ML_WARPGROUP) : "memory");
}

/* Rows first .. end - 1 of panels become zero. */
template <int PANELS> __device__ static void clear_rows(bf16 *panels, int first, int end) {
    const int per_row = PANELS * 8; /* pieces of 16 bytes */

    for (int i = first * per_row + (int)threadIdx.x % ML_WARPGROUP; i < end * per_row;
         i += ML_WARPGROUP)
        *(uint4 *)(panels + i / 8 % PANELS * ML_PANEL + i / per_row * 64 + i % 8 * 8) =
            make_uint4(0, 0, 0, 0);
}

/* A sum over an expert's rows ends within a stage, after `rows`: the rows of the next expert in
 * the last product become zero.  Each team clears what it reads, so that it need not wait for the
 * other one: both write the same zeros to b. */
template <int BN> __device__ static void end_rows(bf16 *a, bf16 *b, int rows, int team) {
    int end = (rows + 15) / 16 * 16;

    if (rows == end)
        return;
    clear_rows<1>(a, rows, end);
    clear_rows<BN / 64>(b, rows, end);
    ml_wgmma_publish();
    sync_team(team);
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
template <int BN, class OUT>
__device__ static int pass_stages(expert_smem<BN, OUT> &smem, int k, int team, int n) {
    const int STAGES = expert_smem<BN, OUT>::STAGES;

    for (int k0 = 0; k0 < k; k0 += BK, n++) {
        ml_barrier_wait(&smem.full[n % STAGES], (unsigned)(n / STAGES) & 1);
        sync_team(team);
        if (leads_team())
            ml_barrier_arrive(&smem.empty[n % STAGES]);
    }
    return n;
}

/* Starts N products of a stage, as one group. */
template <int N, int BN, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void products(float (&acc)[BN / 8][4], const bf16 *a, const bf16 *b) {
    uint32_t pa = ml_panel(a);
    uint32_t pb = B_TRANSPOSED ? ml_panels_wide(ml_panel(b), ML_PANEL * 2) : ml_panel(b);

    ml_wgmma_fence();
#pragma unroll
    for (int k = 0; k < N; k++)
        product<A_TRANSPOSED, B_TRANSPOSED>(
            acc, A_TRANSPOSED ? ml_panel_rows(pa, 0, k) : ml_panel_columns(pa, k),
            B_TRANSPOSED ? ml_panel_rows(pb, 0, k) : ml_panel_columns(pb, k));
    ml_wgmma_commit();
}

/* The products of the last stage of a sum, which has so many rows.  One branch for each number of
 * products: with a branch for each product the compiler makes each a group, and waits for it. */
template <int BN>
__device__ static void last_products(float (&acc)[BN / 8][4], bf16 *a, bf16 *b, int rows,
                                     int team) {
    end_rows<BN>(a, b, rows, team);
    if (rows > 48)
        products<4, BN, true, true>(acc, a, b);
    else if (rows > 32)
        products<3, BN, true, true>(acc, a, b);
    else if (rows > 16)
        products<2, BN, true, true>(acc, a, b);
    else
        products<1, BN, true, true>(acc, a, b);
}

/* What a team does with the stages of a tile.  A stage is free when the products that read it are done.  In sums over
 * an expert's rows A and B are transposed. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static int multiply(float (&acc)[BN / 8][4], expert_smem<BN, OUT> &smem, int sum,
                               int team, int n) {
    const int STAGES = expert_smem<BN, OUT>::STAGES;

    for (int k0 = 0; k0 < sum; k0 += BK, n++) {
        int at = n % STAGES;
        bf16 *a = smem.stage[at].a + team * ML_PANEL, *b = smem.stage[at].b;
        ml_barrier_wait(&smem.full[at], (unsigned)(n / STAGES) & 1);
        if (A_TRANSPOSED && sum - k0 < BK)
            last_products<BN>(acc, a, b, sum - k0, team);
        else
            products<BK / 16, BN, A_TRANSPOSED, B_TRANSPOSED>(acc, a, b);
        wait_products<1>(acc);
        if (k0 > 0 && leads_team())
            ml_barrier_arrive(&smem.empty[(n - 1) % STAGES]);
    }
    wait_products<0>(acc);
    if (sum > 0 && leads_team())
        ml_barrier_arrive(&smem.empty[(n - 1) % STAGES]);
    return n;
}

/* ---- outputs in bf16 ---- */

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

enum { PIECE = 4 }; /* the m16n8 tiles of which each of four lanes has 16 bytes */

/* A lane's bytes of a piece, which are added to `old`; row r of the two that a lane has. */
__device__ static uint4 pack_piece(const float (*acc)[4], int r, bool add, uint4 old) {
    uint32_t v[4] = { old.x, old.y, old.z, old.w };

    if (add)
        exchange(v);
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
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

template <int N>
__device__ static void add_bias(float (&acc)[N][4], const ml_expert_gemm<bf16, bf16> &g,
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
__device__ static void put_pieces(const ml_expert_gemm<bf16, bf16> &g, bf16 *row,
                                  bool there, int col, const float (*acc)[4], int r) {
    uint4 old[4] = {};

    col += (int)threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (g.add && there && col + i * PIECE * 8 < g.n)
            old[i] = *(const uint4 *)(row + col + i * PIECE * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = pack_piece(acc + i * PIECE, r, g.add, old[i]);
        if (there && col + i * PIECE * 8 < g.n)
            *(uint4 *)(row + col + i * PIECE * 8) = v;
    }
}

template <int N>
__device__ static void put(float (&acc)[N][4], const ml_expert_gemm<bf16, bf16> &g,
                           const tile &t) {
    bf16 *c = g.c + (ml_expert_is_fixed(g) ? t.expert * g.c_expert : t.first_row * g.ldc);
    int row = t.m0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;

    if (g.bias)
        add_bias(acc, g, t);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bf16 *to = c + (int64_t)(row + 8 * r) * g.ldc;
        bool there = row + 8 * r < t.m;
#pragma unroll
        for (int j = 0; j < N; j += 4 * PIECE)
            put_pieces(g, to, there, t.n0 + j * 8, acc + j, r);
    }
}

/* ---- outputs in f32 ---- */

/* Four m16n8 tiles of each warp, in the layout of wgmma.cuh's panels: 16-byte piece e of row r is at
 * e XOR r % 8.  In one instruction odd rows write another tile than even ones: otherwise the
 * pieces of rows 2 i and 2 i + 1 would be in the same banks. */
__device__ static void fill_box(float *box, const float (*acc)[4]) {
    int lane = (int)threadIdx.x % 32, row = lane / 4;
    bool odd = row & 1;
    int piece = row ^ (odd ? 4 : 0) ^ (lane / 2 & 1);
    float *to =
        box + ((int)threadIdx.x % ML_WARPGROUP / 32 * 16 + row) * BOX_COLS + lane % 2 * 2;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *at = to + (i * 2 ^ piece) * 4;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = odd ? acc[i ^ 2][j] : acc[i][j];
        *(float2 *)at = make_float2(v[0], v[1]);
        *(float2 *)(at + 8 * BOX_COLS) = make_float2(v[2], v[3]);
    }
}

/* A team's outputs of a tile, of which the first box is number n of the team's; returns the next.
 * Copies leave out what is outside the matrix.  The barrier of a box also says that the
 * next one may be written: of the copies before, only the latest BOXES - 2, from other boxes, may
 * still read. */
template <int BN>
__device__ static int put_boxes(const float (&acc)[BN / 8][4], expert_smem<BN, float> &smem,
                                const CUtensorMap *c, const ml_expert_gemm<bf16, float> &g,
                                const tile &t, int team, int n) {
#pragma unroll
    for (int j = 0; j < BN / BOX_COLS; j++, n++) {
        float *box = smem.outputs.box[team][n % BOXES];
        int col = t.n0 + j * BOX_COLS, row = t.m0 + team * BOX_ROWS;
        if (col >= g.n)
            break;
        fill_box(box, acc + j * (BOX_COLS / 8));
        ml_wgmma_publish();
        if (leads_team())
            ml_tensor_wait_read<BOXES - 2>();
        sync_team(team);
        if (leads_team()) {
            if (g.add)
                ml_tensor_add(c, col, row, t.expert, box);
            else
                ml_tensor_store(c, col, row, t.expert, box);
            ml_tensor_commit();
        }
    }
    return n;
}

/* ---- tiles ---- */

/* Each tile that a block begins is one more that it takes: as many are taken as there are tiles, and
 * the block that takes the last ends with that number. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void copy_tiles(expert_smem<BN, OUT> &smem, const expert_maps &maps,
                                  const ml_expert_gemm<bf16, OUT> &g, unsigned *counter) {
    const int n_tile = count_tiles(smem, g);
    int at = (int)blockIdx.x;
    unsigned taken = 0;

    for (int i = 0, n = 0;; i++) {
        tile t = { -1 };
        if (at < n_tile)
            t = find_tile(smem, g, at);
        if (i >= TILES)
            ml_barrier_wait(&smem.tile_empty[i % TILES], (unsigned)(i / TILES - 1) & 1);
        smem.tiles[i % TILES] = t;
        ml_barrier_arrive(&smem.tile_full[i % TILES]);
        if (at >= n_tile)
            break;
        n = copy_stages<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, maps, t, g, n, counter,
                                                             taken);
        at = (int)(gridDim.x + taken); /* after the first tiles of all blocks */
    }
    if (at == n_tile - 1 + (int)gridDim.x) /* no block takes one after this */
        *counter = 0;
}

/* Tile i of the block, for a team: every warp releases its place. */
template <int BN, class OUT>
__device__ static tile await_tile(expert_smem<BN, OUT> &smem, int i) {
    ml_barrier_wait(&smem.tile_full[i % TILES], (unsigned)(i / TILES) & 1);
    const tile t = smem.tiles[i % TILES];
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ml_barrier_arrive(&smem.tile_empty[i % TILES]);
    return t;
}

template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void multiply_tiles(expert_smem<BN, OUT> &smem, const expert_maps &maps,
                                      int team, const ml_expert_gemm<bf16, OUT> &g) {
    int boxes = 0;

    for (int i = 0, n = 0;; i++) {
        const tile t = await_tile(smem, i);
        if (t.expert < 0)
            break;
        float acc[BN / 8][4] = {};
        if (t.m0 + team * 64 >= t.m) {
            n = pass_stages(smem, t.k, team, n);
            continue;
        }
        n = multiply<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(acc, smem, t.k, team, n);
        if (!ml_expert_has_outputs(g, t.rows))
            continue;
        if constexpr (expert_smem<BN, OUT>::STAGED)
            boxes = put_boxes<BN>(acc, smem, &maps.c, g, t, team, boxes);
        else
            put(acc, g, t);
    }
    if (boxes > 0 && leads_team())
        ml_tensor_wait();
}

template <int BN, class OUT>
__device__ static void init_barriers(expert_smem<BN, OUT> &smem) {
    for (int i = 0; i < expert_smem<BN, OUT>::STAGES; i++) {
        ml_barrier_init(&smem.full[i]);
        ml_barrier_init(&smem.empty[i], TEAMS);
    }
    for (int i = 0; i < TILES; i++) {
        ml_barrier_init(&smem.tile_full[i]);
        ml_barrier_init(&smem.tile_empty[i], TEAM_THREADS / 32);
    }
    ml_barrier_init_end();
}

template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__global__ void __launch_bounds__(THREADS, expert_smem<BN, OUT>::BLOCKS)
    expert_wgmma(const __grid_constant__ expert_maps maps, ml_expert_gemm<bf16, OUT> g,
                 unsigned counter) {
    expert_smem<BN, OUT> &smem = *(expert_smem<BN, OUT> *)expert_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);

    static_assert((sizeof smem + 1024) * expert_smem<BN, OUT>::BLOCKS <= (228 << 10),
                  "the most that the blocks of an SM can have");
    if (threadIdx.x == 0)
        init_barriers(smem);
    ml_grid_release();
    ml_grid_wait();
    if (team == TEAMS && g.start)
        number_tiles(smem, g.start, g.n_expert);
    __syncthreads();
    if constexpr (expert_smem<BN, OUT>::STAGED) {
        if (g.start)
            order_experts(smem.outputs, g.n_expert);
        __syncthreads();
    }
    if (team < TEAMS)
        multiply_tiles<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, maps, team, g);
    else if (threadIdx.x == TEAM_THREADS)
        copy_tiles<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, maps, g,
                                                        &expert_taken[counter]);
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

/* The matrices of f32 outputs. */
static ml_tensor_box output_box(const ml_expert_gemm<bf16, float> &g) {
    ml_tensor_box x = {};

    x.at = g.c;
    x.word = sizeof(float);
    x.swizzled = true;
    x.cols = g.n;
    x.rows = g.m;
    x.count = g.n_expert;
    x.row_stride = g.ldc;
    x.stride = g.c_expert;
    x.box_cols = BOX_COLS;
    x.box_rows = BOX_ROWS;
    return x;
}

static bool map_outputs(CUtensorMap *, const ml_expert_gemm<bf16, bf16> &) {
    return true;
}

static bool map_outputs(CUtensorMap *map, const ml_expert_gemm<bf16, float> &g) {
    ml_tensor_box x = output_box(g);
    return ml_tensor_map(map, &x) == cudaSuccess;
}

/* As many blocks as run at a time, unless there are fewer tiles. */
template <int BN, class OUT>
static unsigned grid_size(const ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g,
                          int64_t rows) {
    dim3 tiles = ml_expert_grid(g, rows, BM, BN);
    unsigned all = tiles.x * tiles.y * tiles.z;
    unsigned most = s->sms * expert_smem<BN, OUT>::BLOCKS;

    return all < most ? all : most;
}

/* False: there is no tensor map of such an operand, or of such outputs. */
template <int BN, class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
static bool launch(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    auto kernel = expert_wgmma<BN, OUT, A_TRANSPOSED, B_TRANSPOSED>;
    const int bytes = (int)sizeof(expert_smem<BN, OUT>);
    ml_tensor_box a = operand_box(g.a, A_TRANSPOSED, g.m ? g.m : rows, g.k ? g.k : rows,
                                  A_TRANSPOSED ? g.a_k : g.a_m, g.a_expert, g.n_expert, BM);
    ml_tensor_box b = operand_box(g.b, B_TRANSPOSED, g.n, g.k ? g.k : rows,
                                  B_TRANSPOSED ? g.b_k : g.b_n, g.b_expert, g.n_expert, BN);
    expert_maps maps = {};

    if (ml_tensor_map(&maps.a, &a) != cudaSuccess ||
        ml_tensor_map(&maps.b, &b) != cudaSuccess || !map_outputs(&maps.c, g))
        return false;
    ml_cuda_note(
        s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "moe-linear");
    ml_cuda_launch(s, "moe-linear", kernel, dim3(grid_size<BN>(s, g, rows)), THREADS,
                   (size_t)bytes, maps, g, s->number % COUNTERS);
    return true;
}

/* Whether tiles of 256 columns are faster: they leave less than an eighth of them empty, and no
 * block waits for what it adds to, as with bf16, while no other one multiplies. */
template <class OUT> static bool takes_wide(const ml_expert_gemm<bf16, OUT> &g) {
    bool waits = g.add && sizeof(OUT) == sizeof(bf16);
    return !waits && g.n > (g.n + 255) / 256 * 224;
}

template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
static bool by_width(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    return takes_wide(g) ? launch<256, OUT, A_TRANSPOSED, B_TRANSPOSED>(s, g, rows)
                         : launch<128, OUT, A_TRANSPOSED, B_TRANSPOSED>(s, g, rows);
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    return g.b_k == 1 ? by_width<bf16, false, false>(s, g, rows)
                      : by_width<bf16, false, true>(s, g, rows);
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g,
                     int64_t rows) {
    return by_width<float, true, true>(s, g, rows);
}
