/* gemm_skinny_wgmma.cu - Small-M GEMM for decode whose weights fit in shared memory, on Hopper.
 *
 * An output is one chain of K / 16 tensor-core steps, and with few rows the time is the latency of the
 * chain.  A step of mma takes 33 cycles, with the loads of its fragments.  One of wgmma reads both operands
 * from shared memory, 2 KB in 16 cycles, and needs nothing else: so a block has one warpgroup and up to 64
 * outputs, and starts all steps of the chain at once.  The weights are the first operand, 64 rows; the rows of x the
 * second, 8 columns.  A block copies its weights before the previous kernel has ended (PDL), all of them.
 *
 * The bits are those of gemm_skinny.cu: products of wgmma accumulate like those of mma. */
#include "backend/cuda/gemm/skinny_norm.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    WARPS = NORM_WARPS,
    THREADS = WARPS * 32,
    MOST_ROWS = 8,  /* of x */
    MOST_TILE = 64, /* rows of the first operand */
    GROUP = 8,      /* of which tiles are multiples */
    STEP = 256,     /* of k that a warp copies at once */
    PACKS = 4,      /* of 8 numbers that a thread copies of a row of x, at most */
    MOST_K = PACKS * THREADS * 8,
    MOST_BLOCKS = 132,
    BAR_NORM = 1
};
static const size_t MOST_SMEM = 224 * 1024;

/* Offsets in shared memory.  Weights and x are panels of 64 columns in the 128-byte swizzle; the products read
 * MOST_TILE rows of a panel, of the last one from the panels of x, too. */
struct tile_plan {
    int rows; /* of weights: outputs, or gate and up rows of half as many */
    size_t x, squares, bytes;
};

struct wgmma_call {
    ml_skinny_gemm f;
    tile_plan p;
};

/* The block's outputs are columns col .. of a part. */
struct place {
    int part, col;

    __device__ place(const wgmma_call &c) : part(0) {
        int each = c.f.gated ? c.p.rows / 2 : c.p.rows;
        col = (int)blockIdx.x * each;
        while (!c.f.gated && part < c.f.n_part - 1 && col >= c.f.part[part].n)
            col -= c.f.part[part++].n;
    }
    /* Row r of the tile: of a gate, eight outputs and then those of the up projection in their place. */
    __device__ const bf16 *row(const wgmma_call &c, int r) const {
        int at = part, output = col + r;
        if (c.f.gated) {
            at = r / GROUP % 2;
            output = col + r / (2 * GROUP) * GROUP + r % GROUP;
        }
        return (const bf16 *)c.f.part[at].w + (int64_t)output * c.f.k;
    }
};

/* Numbers k .. k + 7 of a row in panels of `rows` rows. */
__device__ static bf16 *in_panels(bf16 *panels, int rows, int row, int k) {
    return panels + ((k / 64) * rows + row) * 64 + ((k / 8 ^ row) & 7) * 8;
}

__device__ static void copy_weights(bf16 *to, const wgmma_call &c, const place &at) {
    int lane = (int)threadIdx.x % 32;

    for (int r = (int)threadIdx.x / 32; r < c.p.rows; r += WARPS) {
        const bf16 *from = at.row(c, r);
        for (int k = lane * 8; k < c.f.k; k += STEP)
            ml_copy_async(in_panels(to, c.p.rows, r, k), from + k, true);
    }
    ml_copy_commit();
}

/* The rows of x, normed if there is a norm. */
__device__ static void put_x(bf16 *x, float *squares, const wgmma_call &c,
                             const float (&w)[NORM_PACKS][8]) {
    auto put = [&](int row, int k, const float(&v)[8]) {
        ml_store(in_panels(x, MOST_ROWS, row, k), v);
    };

    if (c.f.norm) {
        norm_rows<BAR_NORM>(put, squares, w, c.f, (int)threadIdx.x);
        return;
    }
    for (int row = 0; row < c.f.m; row++) {
        const bf16 *from = c.f.x + (int64_t)row * c.f.k;
        uint4 v[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int k = ((int)threadIdx.x + i * THREADS) * 8;
            if (k < c.f.k)
                v[i] = __ldcg((const uint4 *)(from + k));
        }
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int k = ((int)threadIdx.x + i * THREADS) * 8;
            if (k < c.f.k)
                *(uint4 *)in_panels(x, MOST_ROWS, row, k) = v[i];
        }
    }
}

/* c += a b' of 64 x 16 and 8 x 16 numbers. */
__device__ static void multiply(float (&c)[4], uint32_t a, uint32_t b) {
    asm volatile("{.reg .b64 a, b;"
                 "mov.b64 a, {%4, " ML_PANEL_HI "}; mov.b64 b, {%5, " ML_PANEL_HI "};"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3}, a, b, 1, 1, 1, 0, 0;}"
                 : ML_WGMMA_ROW(c)
                 : "r"(a), "r"(b));
}

/* The whole chain. */
__device__ static void chain(float (&acc)[4], const bf16 *weights, const bf16 *x,
                             const wgmma_call &c) {
    uint32_t a = ml_panel(weights), b = ml_panel(x);
    const uint32_t next_a = (uint32_t)(c.p.rows * 128 >> 4), next_b = MOST_ROWS * 128 >> 4;

    asm volatile("" : ML_WGMMA_ROW(acc)); /* they are zero before the first fence */
#pragma unroll 1
    for (int k = 0; k < c.f.k; k += STEP) {
        ml_wgmma_fence();
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
            multiply(acc, a + (uint32_t)(k / 64 + i / 4) * next_a + i % 4 * 2,
                     b + (uint32_t)(k / 64 + i / 4) * next_b + i % 4 * 2);
        ml_wgmma_commit();
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : ML_WGMMA_ROW(acc)::"memory");
}

/* ---- epilogue ---- */

/* A lane has row lane / 4 of the warp's 16, and the one 8 further (h), in columns lane % 4 * 2 and the next (i),
 * which are rows of x: an output and the next 8 further, or a gate and its up projection. */
__device__ static float rounded(float v, const ml_skinny_gemm_part &p, int64_t at,
                                int col) {
    v = ml_f32(ml_as<bf16>(v));
    if (p.bias)
        v = ml_f32(ml_as<bf16>(v + p.bias[col]));
    if (p.y)
        p.y[at] = ml_as<bf16>(v);
    return v;
}

__device__ static void put_gated(const wgmma_call &c, const float (&acc)[4], int col) {
    const ml_skinny_gemm &f = c.f;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = (int)threadIdx.x % 4 * 2 + i;
        int64_t at = (int64_t)row * f.part[0].n + col;
        if (row >= f.m)
            continue;
        ml_gate g = ml_gate_of(rounded(acc[i], f.part[0], at, col),
                               rounded(acc[2 + i], f.part[1], at, col), f.act, f.limit);
        f.gated[at] = ml_as<bf16>(g.act * g.up);
    }
}

__device__ static void put(const wgmma_call &c, float acc, float addend, int part, int row,
                           int col) {
    int64_t at = (int64_t)row * c.f.part[part].n + col;
    float v = rounded(acc, c.f.part[part], at, col);

    if (c.f.addend)
        c.f.sum[at] = ml_as<bf16>(v + addend);
}

/* Is the lane's number h, i one of the tile and of a row of x? */
__device__ static bool is_there(const wgmma_call &c, int h, int i) {
    return (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * h < c.p.rows &&
           (int)threadIdx.x % 4 * 2 + i < c.f.m;
}

__device__ static void load_addend(float (&v)[4], const wgmma_call &c, int col) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (c.f.addend && is_there(c, h, i))
                v[2 * h + i] = ml_f32(
                    c.f.addend[(int64_t)((int)threadIdx.x % 4 * 2 + i) * c.f.part[0].n +
                               col + 8 * h]);
}

__global__ static void __launch_bounds__(THREADS)
    skinny_wgmma(const __grid_constant__ wgmma_call c) {
    extern __shared__ __align__(1024) unsigned char skinny_smem[];
    bf16 *weights = (bf16 *)skinny_smem, *x = (bf16 *)(skinny_smem + c.p.x);
    const place at(c);
    /* The shuffle shows the compiler that it is warp-uniform. */
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    int row = warp * 16 + (int)threadIdx.x % 32 / 4;
    int col = at.col + (c.f.gated ? warp * GROUP + (int)threadIdx.x % 32 / 4 : row);
    float addend[4] = {}, norm[NORM_PACKS][8];

    norm_load_weights(norm, c.f, (int)threadIdx.x);
    copy_weights(weights, c, at);
    ml_touch_params(c);
    for (int i = (int)threadIdx.x; i < MOST_ROWS * c.f.k / 8; i += THREADS)
        ((uint4 *)x)[i] = make_uint4(0, 0, 0, 0); /* there may be fewer rows */
    __syncthreads();
    ml_grid_wait();
    ml_grid_release(); /* not earlier: attn_decode_fused.cu relies on it */
    if (warp < ML_WARPGROUP / 32)
        load_addend(addend, c, col);
    put_x(x, (float *)(skinny_smem + c.p.squares), c, norm);
    ml_copy_wait<0>();
    ml_wgmma_publish();
    __syncthreads();
    if (warp >= ML_WARPGROUP / 32)
        return;
    float acc[4] = {};
    chain(acc, weights, x, c);
    if (c.f.gated) {
        if (row < c.p.rows)
            put_gated(c, acc, col);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (is_there(c, k / 2, k % 2))
            put(c, acc[k], addend[k], at.part, (int)threadIdx.x % 4 * 2 + k % 2,
                col + k / 2 * 8);
}

/* ---- configuration and launch ---- */

/* The fewest rows with which there is a block for each SM, and whole tiles in each part; 0: there are
 * none. */
static int rows_of(const ml_skinny_gemm *f, int *blocks) {
    const int n_part = f->gated ? 1 : f->n_part;

    for (int outputs = GROUP; outputs * (f->gated ? 2 : 1) <= MOST_TILE; outputs += GROUP) {
        bool whole = true;
        *blocks = 0;
        for (int i = 0; i < n_part; i++) {
            whole = whole && f->part[i].n % outputs == 0;
            *blocks += f->part[i].n / outputs;
        }
        if (whole && *blocks <= MOST_BLOCKS)
            return outputs * (f->gated ? 2 : 1);
    }
    return 0;
}

static bool plan_of(tile_plan *p, const ml_skinny_gemm *f, int *blocks) {
    const size_t columns = (size_t)f->k * sizeof(bf16);
    size_t read;

    p->rows = rows_of(f, blocks);
    p->x = (size_t)p->rows * columns;
    read =
        p->x + (size_t)(MOST_TILE - p->rows) * 64 * sizeof(bf16); /* by the last product */
    p->squares = p->x + MOST_ROWS * columns;
    p->bytes = p->squares + (size_t)(f->m * NORM_WARPS) * sizeof(float);
    p->bytes = p->bytes > read ? p->bytes : read;
    return p->rows > 0 && p->bytes <= MOST_SMEM;
}

bool ml_skinny_wgmma_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f) {
    tile_plan p;
    int blocks;

    return s->wgmma && f->weights == ML_BF16 && f->m >= 1 && f->m <= MOST_ROWS &&
           f->k % STEP == 0 && f->k <= MOST_K && plan_of(&p, f, &blocks);
}

void ml_skinny_wgmma_run(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    wgmma_call c = {};
    int blocks;

    c.f = *f;
    plan_of(&c.p, f, &blocks);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(skinny_wgmma,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)MOST_SMEM),
                 "products of few rows");
    ml_cuda_launch(s, "products of few rows", skinny_wgmma, dim3((unsigned)blocks), THREADS,
                   c.p.bytes, c);
}
