/* moe_mma.cu - the grouped GEMM of experts, or heads, on tensor cores.
 *
 * Every output is one chain of mma.m16n8k16 over ascending k, in one warp: the expert's
 * other rows and the tile's shape change speed only.  Operands have the same layout in
 * shared memory as in global memory; those whose k is not contiguous are transposed by
 * ldmatrix.trans. */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/moe/moe.cuh"

/* A tile of ROWS of m or n by BK of k: [ROWS][BK], or [BK][ROWS] if TRANSPOSED. */
template <int ROWS, int BK, bool TRANSPOSED> struct operand {
    static const int ld = (TRANSPOSED ? ROWS : BK) + 8; /* no bank conflicts in ldmatrix */
    static const int lines = TRANSPOSED ? BK : ROWS;
    static const int size = lines * ld;
};

/* One expert's operand in global memory. */
struct source {
    const bf16 *at;
    int64_t ld;
    int rows, k;
};

/* Starts the copies of a tile from row row0 and k0 on; zeros outside the matrix. */
template <int ROWS, int BK, bool TRANSPOSED, int THREADS>
__device__ static void fetch(bf16 *to, const source &s, int row0, int k0) {
    typedef operand<ROWS, BK, TRANSPOSED> op;
    const int per_line = (TRANSPOSED ? ROWS : BK) / 8, all = op::lines * per_line;
    int line0 = TRANSPOSED ? k0 : row0, col0 = TRANSPOSED ? row0 : k0;
    int lines = TRANSPOSED ? s.k : s.rows, cols = TRANSPOSED ? s.rows : s.k;

#pragma unroll
    for (int i = 0; i < (all + THREADS - 1) / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x, r = at / per_line, c = at % per_line * 8;
        bool there = line0 + r < lines && col0 + c < cols;
        if (all % THREADS == 0 || at < all)
            ml_copy_async(to + r * op::ld + c,
                          there ? s.at + (int64_t)(line0 + r) * s.ld + col0 + c : s.at,
                          there);
    }
}

/* A fragment: 16 rows from `row` on, k .. k + 15. */
template <int ROWS, int BK, bool TRANSPOSED>
__device__ static void left(uint32_t (&a)[4], const bf16 *t, int row, int k) {
    const int ld = operand<ROWS, BK, TRANSPOSED>::ld;
    int lane = (int)threadIdx.x % 32;

    if (TRANSPOSED)
        ml_ldmatrix4_trans(a, t + (k + lane / 16 * 8 + lane % 8) * ld + row +
                                  lane / 8 % 2 * 8);
    else
        ml_ldmatrix4(a, t + (row + lane % 16) * ld + k + lane / 16 * 8);
}

/* Two B fragments: 16 columns from `col` on, k .. k + 15. */
template <int ROWS, int BK, bool TRANSPOSED>
__device__ static void right(uint32_t (&b)[4], const bf16 *t, int col, int k) {
    const int ld = operand<ROWS, BK, TRANSPOSED>::ld;
    int lane = (int)threadIdx.x % 32;

    if (TRANSPOSED)
        ml_ldmatrix4_trans(b, t + (k + lane % 16) * ld + col + lane / 16 * 8);
    else
        ml_ldmatrix4(b, t + (col + lane / 16 * 8 + lane % 8) * ld + k + lane / 8 % 2 * 8);
}

/* The block's tile: BM rows of an expert; for a weight's gradient, BM of the m rows
 * that each expert's gradient has. */
template <int BM, class OUT>
__device__ static ml_piece find_tile(const ml_expert_gemm<bf16, OUT> &g) {
    int expert = (int)blockIdx.z, first;

    if (!ml_expert_is_fixed(g))
        return ml_find_piece(g.start, g.n_expert, 1, BM, (int)blockIdx.y);
    if (!g.start)
        return { expert, (int)blockIdx.y, 0, (int)g.rows };
    first = g.start[expert];
    return { expert, (int)blockIdx.y, first, g.start[expert + 1] - first };
}

template <class OUT>
__device__ static void put(const ml_expert_gemm<bf16, OUT> &g, OUT *c, int expert, int m,
                           int row, int col, float v0, float v1) {
    float v[2] = { v0, v1 }, old[2];
    OUT *at = c + (int64_t)row * g.ldc + col;

    if (row >= m || col >= g.n)
        return;
    if (g.bias) {
        v[0] += g.bias[expert * g.n + col];
        v[1] += g.bias[expert * g.n + col + 1];
    }
    if (g.add) {
        ml_load(old, at);
        v[0] += old[0];
        v[1] += old[1];
    }
    ml_store(at, v);
}

/* BM x BN outputs, BK of k per stage, STAGES stages; WM x WN warps. */
template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED, int BM, int BN, int BK,
          int STAGES, int WM, int WN>
struct expert_tile {
    static const int threads = WM * WN * 32;
    static const int a_size = operand<BM, BK, A_TRANSPOSED>::size;
    static const int stage = a_size + operand<BN, BK, B_TRANSPOSED>::size;
    static const size_t bytes = (size_t)stage * STAGES * sizeof(bf16);

    __device__ static void get(bf16 *smem, int step, const source &a, const source &b,
                               int m0, int n0) {
        bf16 *to = smem + step % STAGES * stage;
        fetch<BM, BK, A_TRANSPOSED, threads>(to, a, m0, step * BK);
        fetch<BN, BK, B_TRANSPOSED, threads>(to + a_size, b, n0, step * BK);
    }

    __device__ static void multiply(float (&acc)[BM / WM / 16][BN / WN / 8][4],
                                    const bf16 *a, const bf16 *b, int wm, int wn) {
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            uint32_t l[BM / WM / 16][4];
#pragma unroll
            for (int i = 0; i < BM / WM / 16; i++)
                left<BM, BK, A_TRANSPOSED>(l[i], a, wm + i * 16, k);
#pragma unroll
            for (int j = 0; j < BN / WN / 8; j += 2) {
                uint32_t r[4];
                right<BN, BK, B_TRANSPOSED>(r, b, wn + j * 8, k);
#pragma unroll
                for (int i = 0; i < BM / WM / 16; i++) {
                    ml_mma(acc[i][j], l[i], r[0], r[1]);
                    ml_mma(acc[i][j + 1], l[i], r[2], r[3]);
                }
            }
        }
    }
};

template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED, int BM, int BN, int BK,
          int STAGES, int WM, int WN>
__global__ void __launch_bounds__(WM *WN * 32) expert_kernel(ml_expert_gemm<bf16, OUT> g) {
    typedef expert_tile<OUT, A_TRANSPOSED, B_TRANSPOSED, BM, BN, BK, STAGES, WM, WN> tl;
    const int MT = BM / WM / 16, NT = BN / WN / 8;
    extern __shared__ __align__(16) bf16 smem[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int wm = warp / WN * (MT * 16), wn = warp % WN * (NT * 8);
    int m0, n0 = (int)blockIdx.x * BN, m, n_step;
    float acc[MT][NT][4] = {};
    ml_piece p;
    source a, b;
    OUT *c;

    ml_grid_release();
    ml_grid_wait();
    p = find_tile<BM>(g);
    m0 = p.index * BM;
    m = g.m ? (int)g.m : p.rows;
    if (p.index < 0 || !ml_expert_has_outputs(g, p.rows))
        return;
    a = { g.a + p.first_row * g.a_row + p.owner * g.a_expert, A_TRANSPOSED ? g.a_k : g.a_m,
          m, g.k ? (int)g.k : p.rows };
    b = { g.b + p.first_row * g.b_row + p.owner * g.b_expert, B_TRANSPOSED ? g.b_k : g.b_n,
          (int)g.n, a.k };
    c = g.c + (ml_expert_is_fixed(g) ? p.owner * g.c_expert : p.first_row * g.ldc);
    n_step = (a.k + BK - 1) / BK;
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < n_step)
            tl::get(smem, step, a, b, m0, n0);
        ml_copy_commit();
    }
    for (int step = 0; step < n_step; step++) {
        const bf16 *now = smem + step % STAGES * tl::stage;
        ml_copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < n_step)
            tl::get(smem, step + STAGES - 1, a, b, m0, n0);
        ml_copy_commit();
        tl::multiply(acc, now, now + tl::a_size, wm, wn);
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int row = m0 + wm + i * 16 + lane / 4, col = n0 + wn + j * 8 + lane % 4 * 2;
            put(g, c, p.owner, m, row, col, acc[i][j][0], acc[i][j][1]);
            put(g, c, p.owner, m, row + 8, col, acc[i][j][2], acc[i][j][3]);
        }
}

template <class OUT, bool A_TRANSPOSED, bool B_TRANSPOSED, int BM, int BN, int BK,
          int STAGES, int WM, int WN>
static void launch(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    typedef expert_tile<OUT, A_TRANSPOSED, B_TRANSPOSED, BM, BN, BK, STAGES, WM, WN> tl;
    auto kernel =
        expert_kernel<OUT, A_TRANSPOSED, B_TRANSPOSED, BM, BN, BK, STAGES, WM, WN>;
    dim3 grid = ml_expert_grid(g, rows, BM, BN);

    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)tl::bytes),
                 "moe-linear");
    ml_cuda_launch(s, "moe-linear", kernel, grid, tl::threads, tl::bytes, g);
}

/* Chooses the tile by the average rows of an expert. */
template <bool B_TRANSPOSED>
static void by_rows(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    int64_t each = g.start ? rows / g.n_expert : rows;

#if ML_WGMMA
    if (s->wgmma && each > 96 && ml_expert_wgmma(s, g, rows))
        return;
#endif
    if (each <= 12)
        launch<bf16, false, B_TRANSPOSED, 16, 64, 128, 4, 1, 4>(s, g, rows);
    else if (each <= 28)
        launch<bf16, false, B_TRANSPOSED, 32, 128, 64, 4, 1, 4>(s, g, rows);
    else if (each <= 96)
        launch<bf16, false, B_TRANSPOSED, 64, 128, 64, 4, 2, 2>(s, g, rows);
    else
        launch<bf16, false, B_TRANSPOSED, 128, 128, 64, 3, 2, 2>(s, g, rows);
}

void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, bf16> &g, int64_t rows) {
    if (g.b_k == 1)
        by_rows<false>(s, g, rows);
    else
        by_rows<true>(s, g, rows);
}

void ml_expert_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, float> &g, int64_t rows) {
#if ML_WGMMA
    if (s->wgmma && ml_expert_wgmma(s, g, rows))
        return;
#endif
    launch<float, true, true, 128, 128, 32, 4, 2, 2>(s, g, rows);
}
