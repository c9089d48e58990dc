/* moe_wgmma.cu - the grouped GEMM of experts, or heads, on Hopper: wgmma and tensor copies.
 *
 * Every output is one chain of k16 products over ascending k, from +0, as in moe_mma.cu:
 * the bits are the same.  A block has 128 x 128 outputs.  One warp issues the copies
 * of the stages ahead; two warpgroups (teams) multiply, 64 rows each.  Two blocks share
 * an SM: one multiplies while the other stores its outputs. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/moe/moe.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    BM = 128,
    BN = 128,
    BK = 64,
    STAGES = 3,
    TEAMS = 2,
    TEAM_THREADS = TEAMS * ML_WARPGROUP,
    THREADS = TEAM_THREADS + 32 /* the last warp copies */
};

struct expert_smem {
    struct {
        bf16 a[BM * BK], b[BN * BK];
    } stage[STAGES];
    ml_barrier full[STAGES], empty[STAGES];
};

extern __shared__ __align__(1024) unsigned char expert_bytes[];

/* The block's tile: its expert and rows, the first row and column of its outputs. */
struct tile {
    ml_piece p;
    int m0, n0, m, k;
};

template <class OUT> __device__ static tile find_tile(const ml_expert_gemm<bf16, OUT> &g) {
    int expert = (int)blockIdx.z;
    tile t;

    if (!ml_expert_is_fixed(g))
        t.p = ml_find_piece(g.start, g.n_expert, 1, BM, (int)blockIdx.y);
    else if (g.start)
        t.p = { expert, (int)blockIdx.y, g.start[expert],
                g.start[expert + 1] - g.start[expert] };
    else
        t.p = { expert, (int)blockIdx.y, 0, (int)g.rows };
    t.m0 = t.p.index * BM;
    t.n0 = (int)blockIdx.x * BN;
    t.m = g.m ? (int)g.m : t.p.rows;
    t.k = g.k ? (int)g.k : t.p.rows;
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

template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ static void copy_stages(expert_smem &smem, const CUtensorMap *a,
                                   const CUtensorMap *b, const tile &t,
                                   const ml_expert_gemm<bf16, OUT> &g) {
    for (int k0 = 0, n = 0; k0 < t.k; k0 += BK, n++) {
        int at = n % STAGES;
        if (n >= STAGES)
            ml_barrier_wait(&smem.empty[at], (unsigned)(n / STAGES - 1) & 1);
        ml_barrier_expect(&smem.full[at], sizeof smem.stage[0]);
        fetch<A_TRANSPOSED, BM>(smem.stage[at].a, a, t.m0, k0, g.a_row ? t.p.first_row : 0,
                                g.a_expert ? t.p.owner : 0, &smem.full[at]);
        fetch<B_TRANSPOSED, BN>(smem.stage[at].b, b, t.n0, k0, g.b_row ? t.p.first_row : 0,
                                g.b_expert ? t.p.owner : 0, &smem.full[at]);
    }
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
__device__ static void multiply(float (&acc)[BN / 8][4], expert_smem &smem, const tile &t,
                                int team, bool rows_end) {
    int n_step = (t.k + BK - 1) / BK;

    for (int n = 0; n < n_step; n++) {
        int at = n % STAGES, left = t.k - n * BK;
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
            ml_wgmma_128<A_TRANSPOSED, B_TRANSPOSED>(
                acc, A_TRANSPOSED ? ml_panel_rows(pa, 0, k) : ml_panel_columns(pa, k),
                B_TRANSPOSED ? ml_panel_rows(pb, 0, k) : ml_panel_columns(pb, k));
        ml_wgmma_commit();
        ml_wgmma_wait_128<1>(acc);
        if (n > 0 && threadIdx.x % ML_WARPGROUP == 0)
            ml_barrier_arrive(&smem.empty[(n - 1) % STAGES]);
    }
    ml_wgmma_wait_128<0>(acc);
}

/* Four lanes share a row, two columns each of four m16n8 tiles: afterwards each has the
 * eight columns of one tile. */
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

/* Rounds and stores 32 columns of a row, 16 bytes a lane; `col` is the first. */
__device__ static void put_row(const ml_expert_gemm<bf16, bf16> &g, bf16 *row, bool there,
                               int col, const float (*acc)[4], int r) {
    uint32_t v[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = ml_pack2(acc[j][2 * r], acc[j][2 * r + 1]);
    exchange(v);
    col += (int)threadIdx.x % 4 * 8;
    if (there && col < g.n)
        *(uint4 *)(row + col) = make_uint4(v[0], v[1], v[2], v[3]);
}

template <class OUT>
__device__ static void put_row_sums(const ml_expert_gemm<bf16, OUT> &g, OUT *row,
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

__device__ static void put_row(const ml_expert_gemm<bf16, float> &g, float *row, bool there,
                               int col, const float (*acc)[4], int r) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int at = col + j * 8 + (int)threadIdx.x % 4 * 2;
        float v[2] = { acc[j][2 * r], acc[j][2 * r + 1] };
        if (there && at < g.n)
            ml_store(row + at, v);
    }
}

template <class OUT>
__device__ static void add_bias(float (&acc)[BN / 8][4], const ml_expert_gemm<bf16, OUT> &g,
                                const tile &t) {
    const float *bias = g.bias + t.p.owner * g.n;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        int col = t.n0 + j * 8 + (int)threadIdx.x % 4 * 2;
        float b0 = col < g.n ? bias[col] : 0.0f, b1 = col < g.n ? bias[col + 1] : 0.0f;
        acc[j][0] += b0;
        acc[j][1] += b1;
        acc[j][2] += b0;
        acc[j][3] += b1;
    }
}

template <class OUT>
__device__ static void put(float (&acc)[BN / 8][4], const ml_expert_gemm<bf16, OUT> &g,
                           const tile &t) {
    OUT *c = g.c + (ml_expert_is_fixed(g) ? t.p.owner * g.c_expert : t.p.first_row * g.ldc);
    int row = t.m0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;

    if (g.bias)
        add_bias(acc, g, t);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        OUT *to = c + (int64_t)(row + 8 * r) * g.ldc;
        bool there = row + 8 * r < t.m;
#pragma unroll
        for (int j = 0; j < BN / 8; j += 4)
            if (g.add)
                put_row_sums(g, to, there, t.n0 + j * 8, acc + j, r);
            else
                put_row(g, to, there, t.n0 + j * 8, acc + j, r);
    }
}

template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
__global__ void __launch_bounds__(THREADS, 2)
    expert_wgmma(const __grid_constant__ CUtensorMap a,
                 const __grid_constant__ CUtensorMap b, ml_expert_gemm<bf16, OUT> g) {
    expert_smem &smem = *(expert_smem *)expert_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);
    tile t = find_tile(g);

    if (t.p.index < 0 || !ml_expert_has_outputs(g, t.p.rows))
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ml_barrier_init(&smem.full[i]);
            ml_barrier_init(&smem.empty[i], TEAMS);
        }
        ml_barrier_init_end();
    }
    __syncthreads();
    if (team == TEAMS) {
        if (threadIdx.x == TEAM_THREADS)
            copy_stages<OUT, A_TRANSPOSED, B_TRANSPOSED>(smem, &a, &b, t, g);
    } else {
        float acc[BN / 8][4] = {};
        multiply<A_TRANSPOSED, B_TRANSPOSED>(acc, smem, t, team, !g.k);
        put(acc, g, t);
    }
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

/* False: there is no tensor map of such an operand. */
template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED>
static bool launch(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    auto kernel = expert_wgmma<OUT, A_TRANSPOSED, B_TRANSPOSED>;
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
                                      (int)sizeof(expert_smem)),
                 "moe-linear");
    kernel<<<ml_expert_grid(g, rows, BM, BN), THREADS, sizeof(expert_smem), s->stream>>>(
        a, b, g);
    ml_cuda_launched(s, "moe-linear");
    return true;
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    return g.b_k == 1 ? launch<bf16, false, false>(s, g, rows)
                      : launch<bf16, false, true>(s, g, rows);
}

bool ml_expert_wgmma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g,
                     int64_t rows) {
    return launch<float, true, true>(s, g, rows);
}
