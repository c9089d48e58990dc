/* gemm_skinny.cu - Small-M GEMM for decode: latency-bound.
 *
 * A warp has 8 columns (or 8 of a gate and 8 of its up projection), and an output is
 * one chain of mma steps over ascending k, as everywhere: no split-K.  A warp
 * prefetches as many stages of its weights as fit in shared memory before the previous
 * kernel has ended (PDL): weights do not depend on it.  The rows of x are in shared
 * memory as a whole, for the norm in the prologue.
 *
 * Weights here are bf16; those in codes have kernels of their own (gemm_codes.cuh). */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_skinny.cuh"

enum {
    COLUMNS = 8, /* of a warp's tile */
    STEP = 256,  /* of k per stage */
    CHUNK = 64,  /* of k whose fragments are in registers together */
    PACKS = 4,   /* of 8 numbers that a lane has of a narrow row */
    NARROW = PACKS * 256,
    LD = STEP + 8, /* no bank conflicts in ldmatrix */
    MOST_WARPS = 8,
    NORM_ROWS = 8,        /* the most with a norm, which every block computes */
    MULTIPROCESSORS = 132 /* SMs of an H200: a hint for the shape of the grid */
};
static const size_t MOST_SMEM = 220 * 1024;

/* Offsets in shared memory, in bytes; an mbarrier is first. */
struct smem_layout {
    size_t norm, x, ring, bytes;
};

__host__ __device__ static smem_layout smem_layout_of(const ml_skinny_gemm &f, int tiles,
                                                      int stages, int warps) {
    smem_layout r;
    r.norm = 16;
    r.x = r.norm + (f.norm && f.k > NARROW ? (size_t)f.k * sizeof(float) : 0);
    r.ring = r.x + (size_t)f.m * (size_t)(f.k + 8) * sizeof(bf16);
    r.bytes = r.ring + (size_t)(warps * stages * tiles * COLUMNS * LD) * sizeof(bf16);
    return r;
}

/* A warp's weights: TILES tiles of 8 columns; steps of k in a ring of stages. */
template <int TILES, int STAGES> struct stream {
    const bf16 *tile[TILES]; /* [n, k], at the lane's first number */
    bf16 *ring;
    int n_step, k;

    static const int stage = TILES * COLUMNS * LD;
};

/* Starts the copies of a step. */
template <int TILES, int STAGES>
__device__ static void prefetch(const stream<TILES, STAGES> &s, int step) {
    bf16 *to = s.ring + step % STAGES * s.stage + (int)threadIdx.x % 32 * 8;

    if (step < s.n_step) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < COLUMNS; r++)
                ml_copy_async(to + (t * COLUMNS + r) * LD,
                              s.tile[t] + (int64_t)r * s.k + step * STEP, true);
    }
    ml_copy_commit();
}

/* A and B fragments of CHUNK of k. */
template <int TILES> struct operands {
    uint32_t a[CHUNK / 16][4], b[TILES][CHUNK / 16][2];
};

/* B fragments of a tile. */
template <int TILES>
__device__ static void load_weights(operands<TILES> &o, int t, const bf16 *from) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i += 2) { /* two in one instruction */
        uint32_t w[4];
        ml_ldmatrix4(w, from + lane % 8 * LD + lane / 8 * 8 + i * 16);
        o.b[t][i][0] = w[0];
        o.b[t][i][1] = w[1];
        o.b[t][i + 1][0] = w[2];
        o.b[t][i + 1][1] = w[3];
    }
}

/* A fragments.  With up to 8 rows half of them are loaded: rows 8 .. 15 stay zero. */
template <int TILES>
__device__ static void load_rows(operands<TILES> &o, const bf16 *x, bool half) {
    if (!half) {
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            ml_ldmatrix4(o.a[i], x + i * 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK / 16; i += 2) { /* two steps of 16 in one instruction */
        uint32_t r[4];
        ml_ldmatrix4(r, x + i * 16);
        o.a[i][0] = r[0];
        o.a[i][2] = r[1];
        o.a[i + 1][0] = r[2];
        o.a[i + 1][2] = r[3];
    }
}

/* The address that a lane gives to ldmatrix for A fragments. */
__device__ static const bf16 *lane_rows(const bf16 *x, const ml_skinny_gemm &f, bool half) {
    int lane = (int)threadIdx.x % 32, per = half ? 8 : 16, row = lane % per;
    return x + (row < f.m ? row : f.m - 1) * (f.k + 8) + lane / per * 8;
}

template <int TILES>
__device__ static void multiply(float (&acc)[TILES][4], const operands<TILES> &o, int i) {
#pragma unroll
    for (int t = 0; t < TILES; t++)
        ml_mma(acc[t], o.a[i], o.b[t][i][0], o.b[t][i][1]);
}

/* Fetches a chunk.  The compiler moves loads to where their results are used, which would wait for
 * each of them: it moves none of them over a __syncwarp. */
template <bool HALF, int TILES>
__device__ static void fetch(operands<TILES> &o, const bf16 *x, const bf16 *w, int at) {
    load_rows(o, x + at, HALF);
#pragma unroll
    for (int t = 0; t < TILES; t++)
        load_weights(o, t, w + t * COLUMNS * LD + at);
    __syncwarp();
}

/* The mainloop of a warp.  While a chunk is multiplied, step by step, each of which needs the result of
 * the one before, the fragments of the next are loaded; a stage is refilled after its last chunk was
 * fetched. */
template <bool HALF, int TILES, int STAGES>
__device__ static void chains(float (&acc)[TILES][4], const stream<TILES, STAGES> &s,
                              const bf16 *x) {
    const int per = STEP / CHUNK;
    const bf16 *w = s.ring;
    operands<TILES> o[2] = {};

    ml_copy_wait<STAGES - 1>();
    __syncwarp();
    fetch<HALF>(o[0], x, w, 0);
    for (int step = 0, stage = 1; step < s.n_step; step++) {
#pragma unroll
        for (int c = 0; c < per; c++) {
            operands<TILES> &now = o[c % 2], &next = o[(c + 1) % 2];
            if (c + 1 == per && step + 1 < s.n_step) {
                ml_copy_wait<STAGES - 2>();
                __syncwarp();
                x += STEP;
                w = s.ring + stage * s.stage;
            }
            /* After the last chunk this fetches the first of its stage again. */
            fetch<HALF>(next, x, w, (c + 1) % per * CHUNK);
#pragma unroll
            for (int i = 0; i < CHUNK / 16; i++)
                multiply(acc, now, i);
        }
        __syncwarp();
        prefetch(s, step + STAGES);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
}

/* ---- prologue: the norm ---- */

/* 1 / the root mean square of a row, from its sum of squares. */
__device__ static float scale_of(float squares, const ml_skinny_gemm &f) {
    return 1.0f / sqrtf(squares / (float)f.k + f.eps);
}

/* Rows of up to 1024: in the order of norm.cu, where a warp has a row, with PACKS packs
 * of 8 per lane.  The weights are prefetched. */
typedef float packs[PACKS][8];

__device__ static void load_narrow_weights(packs &w, const ml_skinny_gemm &f) {
#pragma unroll
    for (int j = 0; j < PACKS; j++) {
        int i = 8 * ((int)threadIdx.x % 32 + 32 * j);
        if (i < f.k)
            ml_load(w[j], f.norm + i);
#pragma unroll
        for (int k = 0; k < 8; k++)
            w[j][k] += f.plus_one ? 1.0f : 0.0f;
    }
}

/* A warp writes packs first, first + step .. of a row; it sums the squares of all packs. */
__device__ static void norm_narrow(bf16 *to, const packs &w, const ml_skinny_gemm &f,
                                   int row, int first, int step) {
    const bf16 *from = f.x + (int64_t)row * f.k;
    packs x = {};
    float sum = 0.0f, r;

#pragma unroll
    for (int j = 0; j < PACKS; j++) {
        int i = 8 * ((int)threadIdx.x % 32 + 32 * j);
        if (i < f.k)
            ml_load(x[j], from + i);
    }
#pragma unroll
    for (int j = 0; j < PACKS; j++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum = fmaf(x[j][k], x[j][k], sum);
    r = scale_of(ml_warp_sum(sum), f);
#pragma unroll
    for (int j = 0; j < PACKS; j++) {
        int i = 8 * ((int)threadIdx.x % 32 + 32 * j);
        if (j % step != first || i >= f.k)
            continue;
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j][k] = (x[j][k] * r) * w[j][k];
        ml_store(to + row * (f.k + 8) + i, x[j]);
        if (blockIdx.x == 0 && f.normed)
            ml_store(f.normed + (int64_t)row * f.k + i, x[j]);
    }
}

/* All rows; if there are fewer of them than warps, warps share them. */
__device__ static void norm_narrow_rows(bf16 *to, const packs &w, const ml_skinny_gemm &f) {
    int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
    int share = warps / f.m < 1 ? 1 : warps / f.m > PACKS ? PACKS : warps / f.m;

    for (int i = warp / share; i < f.m; i += warps / share)
        norm_narrow(to, w, f, i, warp % share, share);
}

/* Wider rows, in shared memory: in norm.cu eight warps share a row; here one warp
 * computes their partial sums one after the other, in the same order. */
__device__ static float wide_squares(const bf16 *x, int k) {
    const int team = 256;
    int lane = (int)threadIdx.x % 32;
    float sum = 0.0f;

    for (int first = 0; first < team; first += 32) {
        float part = 0.0f;
        for (int i = 8 * (first + lane); i < k; i += 8 * team) {
            float v[8];
            ml_load(v, x + i);
#pragma unroll
            for (int j = 0; j < 8; j++)
                part = fmaf(v[j], v[j], part);
        }
        sum += ml_warp_sum(part);
    }
    return sum;
}

/* One row by one warp, in place. */
__device__ static void norm_wide(bf16 *x, const float *w, const ml_skinny_gemm &f,
                                 int row) {
    float r;

    x += row * (f.k + 8);
    r = scale_of(wide_squares(x, f.k), f);
    for (int i = 8 * ((int)threadIdx.x % 32); i < f.k; i += 256) {
        float v[8];
        ml_load(v, x + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = (v[j] * r) * (w[i + j] + (f.plus_one ? 1.0f : 0.0f));
        ml_store(x + i, v);
        if (blockIdx.x == 0 && f.normed)
            ml_store(f.normed + (int64_t)row * f.k + i, v);
    }
}

/* ---- epilogue ---- */

template <int TILES>
__device__ static void put(const ml_skinny_gemm &f, const float (&acc)[TILES][4], int part,
                           int col, const float (&addend)[2][2]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        int64_t at = (int64_t)row * f.part[part].n + col;
        float v[2], u[2];
        if (row >= f.m)
            continue;
        ml_skinny_finish(v, acc[0][2 * r], acc[0][2 * r + 1], f.part[part], at, col);
        if constexpr (TILES == 2) {
            ml_skinny_finish(u, acc[1][2 * r], acc[1][2 * r + 1], f.part[1], at, col);
            ml_skinny_put_gated(f, v, u, at);
        } else if (f.addend) {
            ml_skinny_put_sum(f, v, addend[r], at);
        }
    }
}

/* ---- the kernel ---- */

/* Copies whole rows by bulk copies: waiting for their mbarrier does not wait for the
 * weights' cp.async groups. */
__device__ static void prefetch_rows(bf16 *x, const ml_skinny_gemm &f, ml_barrier *here) {
    int lane = (int)threadIdx.x % 32;

    if (lane == 0)
        ml_barrier_expect(here, (unsigned)(f.m * f.k) * sizeof(bf16));
    __syncwarp();
    if (lane < f.m)
        ml_bulk_copy(x + lane * (f.k + 8), f.x + (int64_t)lane * f.k,
                     (unsigned)f.k * sizeof(bf16), here);
}

__device__ static void load_addend(float (&v)[2][2], const ml_skinny_gemm &f, int col) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (int)threadIdx.x % 32 / 4 + 8 * r;
        if (row < f.m)
            ml_load(v[r], f.addend + (int64_t)row * f.part[0].n + col);
    }
}

/* The stream of a warp that has column `col` of part `part` on, or of that part and the next. */
template <int TILES, int STAGES>
__device__ static stream<TILES, STAGES> open_stream(const ml_skinny_gemm &f, int part,
                                                    int col, bf16 *ring, int n_step) {
    stream<TILES, STAGES> s;
#pragma unroll
    for (int t = 0; t < TILES; t++)
        s.tile[t] = (const bf16 *)f.part[part + t].w + (int64_t)col * f.k +
                    (int)threadIdx.x % 32 * 8;
    s.ring = ring;
    s.n_step = n_step;
    s.k = f.k;
    return s;
}

template <int TILES, int STAGES, bool HALF>
__global__ void __launch_bounds__(MOST_WARPS * 32)
    skinny_kernel(const __grid_constant__ ml_skinny_gemm f) {
    extern __shared__ __align__(128) unsigned char smem[];
    int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32,
        lane = (int)threadIdx.x % 32;
    smem_layout r = smem_layout_of(f, TILES, STAGES, warps);
    ml_barrier *rows_here = (ml_barrier *)smem;
    float *norm = (float *)(smem + r.norm);
    bf16 *x = (bf16 *)(smem + r.x);
    int part = 0, col = ((int)blockIdx.x * warps + warp) * COLUMNS;
    float acc[TILES][4] = {}, addend[2][2] = {};
    packs weights = {};
    bool has_work, narrow = f.norm && f.k <= NARROW;

    while (TILES == 1 && part < f.n_part - 1 && col >= f.part[part].n)
        col -= f.part[part++].n;
    has_work = col < f.part[part].n;
    auto s = open_stream<TILES, STAGES>(
        f, part, col, (bf16 *)(smem + r.ring) + warp * STAGES * TILES * COLUMNS * LD,
        has_work ? f.k / STEP : 0);
    for (int i = 0; i < STAGES; i++)
        prefetch(s, i);
    if (threadIdx.x == 0) {
        ml_barrier_init(rows_here);
        ml_barrier_init_end();
    }
    ml_touch_params(f);
    if (narrow)
        load_narrow_weights(weights, f);
    for (int i = (int)threadIdx.x * 4; f.norm && !narrow && i < f.k;
         i += (int)blockDim.x * 4)
        *(float4 *)(norm + i) = *(const float4 *)(f.norm + i);
    ml_grid_wait();
    ml_grid_release(); /* not earlier: attn_decode_fused.cu relies on it */
    col += lane % 4 * 2;
    if (f.addend && has_work)
        load_addend(addend, f, col);
    if (narrow)
        norm_narrow_rows(x, weights, f);
    else if (warp == 0)
        prefetch_rows(x, f, rows_here);
    __syncthreads(); /* normed rows; or the mbarrier and the norm's weights */
    if (!narrow)
        ml_barrier_wait(rows_here, 0);
    if (f.norm && !narrow) {
        for (int i = warp; i < f.m; i += warps)
            norm_wide(x, norm, f, i);
        __syncthreads();
    }
    if (!has_work)
        return;
    chains<HALF>(acc, s, lane_rows(x, f, HALF));
    put<TILES>(f, acc, part, col, addend);
}

/* ---- configuration and launch ---- */

static int tiles_of(const ml_skinny_gemm *f) {
    int n = 0;
    for (int i = 0; i < (f->gated ? 1 : f->n_part); i++)
        n += f->part[i].n / COLUMNS;
    return n;
}

/* Warps per block: as many as give every SM one block. */
static int warps_of(const ml_skinny_gemm *f) {
    int w = (tiles_of(f) + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    int most = f->gated ? MOST_WARPS / 2 : MOST_WARPS;
    return w < most ? w : most;
}

/* The most stages that are of use and fit in shared memory; 0: none do. */
static int stages_of(const ml_skinny_gemm *f) {
    static const int choice[2][3] = { { 12, 8, 4 }, { 4, 2, 2 } };
    int wanted = f->k / STEP, tiles = f->gated ? 2 : 1;

    for (int i = 0; i < 3; i++) {
        int n = choice[tiles - 1][i];
        if ((n <= wanted || i == 2) &&
            smem_layout_of(*f, tiles, n, warps_of(f)).bytes <= MOST_SMEM)
            return n;
    }
    return 0;
}

bool ml_skinny_gemm_reads(ml_dtype weights) {
    return weights == ML_BF16 || ml_codes_gemm_reads(weights);
}

void ml_skinny_gemm_add(ml_skinny_gemm *f, const ml_op_args *a, bool stored) {
    const ml_tensor *w = &a->w[0];
    ml_skinny_gemm_part *p = &f->part[f->n_part++];

    f->x = (const bf16 *)a->in[0].data;
    f->m = (int)a->in[0].shape[0];
    f->k = (int)w->shape[1];
    f->weights = w->dtype;
    if (ml_dtype_codes(w->dtype)) {
        f->panel = ml_codes_panel_bytes(w->dtype, f->k);
        f->scales = ml_codes_scale_bytes(w->dtype, f->k);
    }
    p->w = w->data;
    p->bias = (const float *)a->w[1].data;
    p->n = (int)w->shape[0];
    p->y = stored ? (bf16 *)a->out[0].data : NULL;
}

bool ml_skinny_gemm_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f) {
    if (f->weights != ML_BF16)
        return ml_codes_gemm_supports(s, f);
    if (f->m < 1 || f->m > ML_SKINNY_ROWS || f->k % STEP != 0)
        return false;
    if (f->norm && (f->m > NORM_ROWS || f->k > 8192))
        return false;
    for (int i = 0; i < f->n_part; i++)
        if (f->part[i].n % COLUMNS != 0)
            return false;
    return stages_of(f) > 0;
}

template <int TILES, int STAGES, bool HALF>
static void launch(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    int warps = warps_of(f);
    size_t bytes = smem_layout_of(*f, TILES, STAGES, warps).bytes;

    ml_cuda_note(s,
                 cudaFuncSetAttribute(skinny_kernel<TILES, STAGES, HALF>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)MOST_SMEM),
                 "products of few rows");
    ml_cuda_launch(s, "products of few rows", skinny_kernel<TILES, STAGES, HALF>,
                   dim3(ml_cuda_blocks(tiles_of(f), warps)), (unsigned)warps * 32, bytes,
                   *f);
}

template <bool HALF> static void choose(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    switch (stages_of(f)) {
    case 12: launch<1, 12, HALF>(s, f); break;
    case 8: launch<1, 8, HALF>(s, f); break;
    case 4: f->gated ? launch<2, 4, HALF>(s, f) : launch<1, 4, HALF>(s, f); break;
    default: launch<2, 2, HALF>(s, f);
    }
}

void ml_skinny_gemm_run(ml_cuda_stream *s, const ml_skinny_gemm *f) {
#if ML_WGMMA
    if (ml_skinny_wgmma_supports(s, f)) {
        ml_skinny_wgmma_run(s, f);
        return;
    }
#endif
    if (f->weights != ML_BF16)
        ml_codes_gemm_run(s, f);
    else if (f->m <= 8)
        choose<true>(s, f);
    else
        choose<false>(s, f);
}
