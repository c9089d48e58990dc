/* gemm_codes_rows.cu - products of more rows with quantized weights, which are read as codes.
 *
 * A warp has a tile of 16 outputs (or one of a gate and one of its up projection) for all rows, and
 * dequantizes it in registers: each code is read and dequantized once.  The rows of x pass through a ring
 * in shared memory that the block's warps share.  An output is one chain of mma steps over ascending k. */
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_tiles.cuh"

enum { MOST_CHAINS = 8 };

/* Offsets in shared memory are in bytes. */
struct rows_plan {
    int items, chains, stages;
    size_t x, raw, bytes;
};

struct rows_call {
    ml_skinny_gemm f;
    rows_plan p;
};

/* ---- the kernel ---- */

template <class W, int TILES, int COLS>
__global__ void __launch_bounds__((MOST_CHAINS + 1) * 32)
    rows_kernel(const __grid_constant__ rows_call c) {
    extern __shared__ __align__(128) unsigned char smem[];
    const ml_skinny_gemm &f = c.f;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_step;
    bool is_chain = warp < c.p.chains;
    place at = place_of<TILES>(f, (int)blockIdx.x * c.p.chains + warp);
    float acc[TILES][COLS][4] = {}, addend[COLS][2][2] = {};
    ml_barrier *full = (ml_barrier *)smem;
    rows_ring rows = { (bf16 *)(smem + c.p.x), full, full + ML_ROW_SLOTS, f.m, {}, {} };

    at.has_work = at.has_work && is_chain;
    n_step = f.k / STEP;
    auto weights = ring_of<W, TILES>(
        f, at, smem + c.p.raw + (size_t)warp * c.p.stages * TILES * W::stage,
        full + 2 * ML_ROW_SLOTS + warp * c.p.stages, c.p.stages);
    if (is_chain && lane == 0) {
        weights.open();
    } else if (lane == 0) {
        int left = c.p.items - (int)blockIdx.x * c.p.chains;
        rows.open(left < c.p.chains ? left : c.p.chains);
    }
    __syncthreads();
    if (is_chain)
        weights.fill();
    ml_grid_wait();
    ml_grid_release(); /* not earlier: attn_decode_fused.cu relies on it */
    if (!is_chain)
        rows.fill(f.x, f.k);
    if (!at.has_work)
        return;
    load_addend(addend, f, at.col + lane / 4 * 2);
    stream_chains<W>(acc, weights, rows, n_step);
    put<TILES, COLS>(f, acc, addend, at.part, at.col + lane / 4 * 2);
}

/* ---- configuration and launch ---- */

/* Every block reads all of x: with more rows fewer blocks have more outputs each. */
static int chains_of(int items, int m) {
    int n = (items + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    int least = m > 16 ? 2 : 1;

    n = n > least ? n : least;
    return n < MOST_CHAINS ? n : MOST_CHAINS;
}

template <class W> static bool plan_for(rows_plan *p, const ml_skinny_gemm *f) {
    size_t ring, x = (size_t)f->m * (STEP + PAD) * sizeof(bf16), barriers;
    int n_step = f->k / STEP;

    p->items = items_of(f);
    p->chains = chains_of(p->items, f->m);
    ring = (size_t)(p->chains * (f->gated ? 2 : 1) * W::stage);
    barriers = (size_t)(2 * ML_ROW_SLOTS + p->chains * n_step) * sizeof(ml_barrier);
    p->x = align_up(barriers);
    p->raw = align_up(p->x + ML_ROW_SLOTS * x);
    if (p->raw + 2 * ring > MOST_SMEM)
        return false;
    p->stages = (int)((MOST_SMEM - p->raw) / ring);
    p->stages = p->stages < n_step ? p->stages : n_step;
    p->bytes = p->raw + (size_t)p->stages * ring;
    return true;
}

static bool plan_of(rows_plan *p, const ml_skinny_gemm *f) {
    WITH_CODES(f->weights, return plan_for<W>(p, f));
    return false;
}

bool ml_codes_rows_supports(const ml_skinny_gemm *f) {
    rows_plan p;

    if (f->m < 1 || f->m > ML_CODES_ROWS || f->norm || f->k % STEP != 0)
        return false;
    for (int i = 0; i < f->n_part; i++)
        if (f->part[i].n % TILE != 0)
            return false;
    return plan_of(&p, f);
}

template <class W, int TILES, int COLS>
static void launch(ml_cuda_stream *s, const rows_call &c) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(rows_kernel<W, TILES, COLS>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)MOST_SMEM),
                 "products with codes");
    ml_cuda_launch(s, "products with codes", rows_kernel<W, TILES, COLS>,
                   dim3(ml_cuda_blocks(c.p.items, c.p.chains)),
                   (unsigned)(c.p.chains + 1) * 32, c.p.bytes, c);
}

template <class W, int TILES> static void run(ml_cuda_stream *s, const rows_call &c) {
    if (c.f.m <= 16)
        launch<W, TILES, 2>(s, c);
    else
        launch<W, TILES, 4>(s, c);
}

void ml_codes_rows_run(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    rows_call c = {};

    c.f = *f;
    plan_of(&c.p, f);
    WITH_CODES(f->weights, f->gated ? run<W, 2>(s, c) : run<W, 1>(s, c));
}
