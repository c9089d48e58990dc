/* gemm_mma.cu - y = x w' on tensor cores, batch-invariant.
 *
 * Every output is one chain of mma.m16n8k16 over ascending k, in one warp: tile shapes
 * change speed only.  Few rows need many narrow tiles and a deep pipeline of copies,
 * since reading the weights once takes all the time; many rows need square tiles. */
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/mma.cuh"

/* BM rows of x by BN rows of w, BK of k per stage, STAGES stages; WM x WN warps. */
template <int BM, int BN, int BK, int STAGES, int WM, int WN> struct tile {
    static const int threads = WM * WN * 32;
    static const int ld = BK + 8; /* no bank conflicts in ldmatrix */
    static const int stage = (BM + BN) * ld;
    static const size_t bytes = (size_t)stage * STAGES * sizeof(bf16);
};

struct mma_call {
    const bf16 *x, *w;
    void *y;
    int m, n, k;
    int64_t ldx, ldw, ldy;
};

/* Starts the copies of ROWS rows of BK numbers from k0 on; zeros outside the matrix. */
template <int ROWS, int BK, int THREADS>
__device__ static void fetch(bf16 *to, const bf16 *from, int64_t ld, int row0, int rows,
                             int k0, int k) {
    const int per_row = BK / 8;
#pragma unroll
    for (int i = 0; i < (ROWS * per_row + THREADS - 1) / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x, r = at / per_row, c = at % per_row * 8;
        bool there = row0 + r < rows && k0 + c < k;
        if (ROWS * per_row % THREADS == 0 || at < ROWS * per_row)
            ml_copy_async(to + r * (BK + 8) + c,
                          there ? from + (int64_t)(row0 + r) * ld + k0 + c : from, there);
    }
}

template <class OUT>
__device__ static void put_pair(const mma_call &c, int row, int col, float v0, float v1) {
    OUT *y = (OUT *)c.y + (int64_t)row * c.ldy + col;
    float v[2] = { v0, v1 };

    if (row >= c.m)
        return;
    if (col + 1 < c.n && c.ldy % 2 == 0) {
        ml_store(y, v);
        return;
    }
    if (col < c.n)
        y[0] = ml_as<OUT>(v0);
    if (col + 1 < c.n)
        y[1] = ml_as<OUT>(v1);
}

template <class OUT, int BM, int BN, int BK, int STAGES, int WM, int WN>
__global__ void __launch_bounds__(WM *WN * 32) mma_kernel(mma_call c) {
    typedef tile<BM, BN, BK, STAGES, WM, WN> tl;
    const int MT = BM / WM / 16, NT = BN / WN / 8;
    extern __shared__ __align__(16) bf16 smem[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int m0 = (int)blockIdx.y * BM, n0 = (int)blockIdx.x * BN;
    int wm = warp / WN * (MT * 16), wn = warp % WN * (NT * 8);
    int n_step = (c.k + BK - 1) / BK;
    float acc[MT][NT][4] = {};

    for (int st = 0; st < STAGES - 1; st++) {
        bf16 *x = smem + st * tl::stage;
        if (st < n_step) {
            fetch<BM, BK, tl::threads>(x, c.x, c.ldx, m0, c.m, st * BK, c.k);
            fetch<BN, BK, tl::threads>(x + BM * tl::ld, c.w, c.ldw, n0, c.n, st * BK, c.k);
        }
        ml_copy_commit();
    }
    for (int step = 0; step < n_step; step++) {
        bf16 *x = smem + step % STAGES * tl::stage, *w = x + BM * tl::ld;
        int next = step + STAGES - 1;
        bf16 *to = smem + next % STAGES * tl::stage;

        ml_copy_wait<STAGES - 2>();
        __syncthreads();
        if (next < n_step) {
            fetch<BM, BK, tl::threads>(to, c.x, c.ldx, m0, c.m, next * BK, c.k);
            fetch<BN, BK, tl::threads>(to + BM * tl::ld, c.w, c.ldw, n0, c.n, next * BK,
                                       c.k);
        }
        ml_copy_commit();
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            uint32_t a[MT][4], b[NT][2];
#pragma unroll
            for (int i = 0; i < MT; i++)
                ml_ldmatrix4(a[i],
                             x + (wm + i * 16 + lane % 16) * tl::ld + k + lane / 16 * 8);
            if (NT % 2 == 0) {
#pragma unroll
                for (int j = 0; j < NT; j += 2) {
                    uint32_t r[4];
                    ml_ldmatrix4(r, w + (wn + j * 8 + lane / 16 * 8 + lane % 8) * tl::ld +
                                        k + lane / 8 % 2 * 8);
                    b[j][0] = r[0];
                    b[j][1] = r[1];
                    b[(j + 1) % NT][0] = r[2];
                    b[(j + 1) % NT][1] = r[3];
                }
            } else {
#pragma unroll
                for (int j = 0; j < NT; j++)
                    ml_ldmatrix2(b[j], w + (wn + j * 8 + lane % 8) * tl::ld + k +
                                           lane / 8 % 2 * 8);
            }
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    ml_mma(acc[i][j], a[i], b[j][0], b[j][1]);
        }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int row = m0 + wm + i * 16 + lane / 4, col = n0 + wn + j * 8 + lane % 4 * 2;
            put_pair<OUT>(c, row, col, acc[i][j][0], acc[i][j][1]);
            put_pair<OUT>(c, row + 8, col, acc[i][j][2], acc[i][j][3]);
        }
}

template <class OUT, int BM, int BN, int BK, int STAGES, int WM, int WN>
static void launch(ml_cuda_stream *s, const mma_call &c) {
    typedef tile<BM, BN, BK, STAGES, WM, WN> tl;
    dim3 grid(ml_cuda_blocks(c.n, BN), ml_cuda_blocks(c.m, BM));

    ml_cuda_note(s,
                 cudaFuncSetAttribute(mma_kernel<OUT, BM, BN, BK, STAGES, WM, WN>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)tl::bytes),
                 "product");
    mma_kernel<OUT, BM, BN, BK, STAGES, WM, WN>
        <<<grid, tl::threads, tl::bytes, s->stream>>>(c);
    ml_cuda_launched(s, "product");
}

/* Chooses the tile: first enough blocks for all SMs, then data reuse. */
template <class OUT> static void choose(ml_cuda_stream *s, const mma_call &c) {
    if (c.m <= 16 && c.n <= 2048)
        launch<OUT, 16, 8, 256, 6, 1, 1>(s, c);
    else if (c.m <= 16 && c.n <= 4096)
        launch<OUT, 16, 16, 256, 5, 1, 2>(s, c);
    else if (c.m <= 8)
        launch<OUT, 16, 64, 128, 4, 1, 4>(s, c);
    else if (c.m <= 16)
        launch<OUT, 16, 128, 64, 5, 1, 8>(s, c);
    else if ((c.m <= 64 && c.n <= 4096) || (c.m <= 128 && c.n <= 1024))
        launch<OUT, 32, 32, 128, 5, 2, 2>(s, c);
    else if (c.m <= 64)
        launch<OUT, 64, 128, 64, 4, 2, 4>(s, c);
    else if (c.m <= 512 && c.n <= 8192)
        launch<OUT, 64, 64, 64, 5, 2, 2>(s, c);
    else
        launch<OUT, 128, 128, 64, 4, 2, 2>(s, c);
}

bool ml_gemm_mma_takes(const ml_gemm *g) {
    return g->in == ML_BF16 && g->a_k == 1 && g->b_k == 1 && g->k % 8 == 0 &&
           g->a_m % 8 == 0 && g->b_n % 8 == 0 && !g->add;
}

void ml_gemm_mma(ml_cuda_stream *s, const ml_gemm *g) {
    mma_call c = {};

    c.x = (const bf16 *)g->a;
    c.w = (const bf16 *)g->b;
    c.y = g->c;
    c.m = (int)g->m;
    c.n = (int)g->n;
    c.k = (int)g->k;
    c.ldx = g->a_m;
    c.ldw = g->b_n;
    c.ldy = g->ldc;
    if (c.m == 0 || c.n == 0)
        return;
    if (g->out == ML_F32)
        choose<float>(s, c);
    else
        choose<bf16>(s, c);
}
