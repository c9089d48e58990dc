/* gemm_codes_experts.cu - MOE_LINEAR with quantized weights, which are read as codes.
 *
 * A block has tiles of an expert that has rows, and at most 32 of these rows; the warps and their sums are
 * those of gemm_codes_rows.cu.  On Hopper, experts with more rows have the kernel of
 * gemm_codes_wgmma.cu. */
#include "backend/cuda/dense.cuh"
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_tiles.cuh"

enum {
    CHAINS = 4,
    MOST_ROWS = 24, /* of an expert, on average */
    MOST_WGMMA_ROWS = 512
};
static const size_t EXPERT_SMEM = 72 * 1024; /* three blocks on an SM */

/* Offsets in shared memory are in bytes. */
struct expert_call {
    ml_skinny_gemm f; /* of one expert; m, x and y: of all */
    const int32_t *start;
    int n_expert, stages;
    size_t expert, x, raw, bytes; /* expert: bytes of its weight */
};

/* Outputs of a lane.  The bias is added before the rounding, as in moe_mma.cu. */
template <int COLS>
__device__ static void put_rows(const ml_skinny_gemm &f, const float (&acc)[1][COLS][4],
                                const float *bias, int col) {
#pragma unroll
    for (int i = 0; i < 2 * COLS; i++) {
        float v[2] = { acc[0][i / 2][i % 2], acc[0][i / 2][2 + i % 2] };
        if (row_of(i) >= f.m)
            continue;
        if (bias) {
            v[0] += bias[col];
            v[1] += bias[col + 1];
        }
        ml_store(f.part[0].y + (int64_t)row_of(i) * f.part[0].n + col, v);
    }
}

/* The product of a piece of an expert's rows. */
template <int COLS>
__device__ static ml_skinny_gemm piece_of(const expert_call &c, const ml_piece &p) {
    ml_skinny_gemm f = {};
    int64_t first = p.first_row + p.index * 8 * COLS;

    f.m = p.rows - p.index * 8 * COLS;
    f.m = f.m < 8 * COLS ? f.m : 8 * COLS;
    f.k = c.f.k;
    f.x = c.f.x + first * f.k;
    f.panel = c.f.panel;
    f.scales = c.f.scales;
    f.part[0].n = c.f.part[0].n;
    f.part[0].w = (const unsigned char *)c.f.part[0].w + p.owner * c.expert;
    f.part[0].y = c.f.part[0].y + first * f.part[0].n;
    return f;
}

template <class W, int COLS>
__global__ void __launch_bounds__((CHAINS + 1) * 32)
    expert_codes_kernel(const __grid_constant__ expert_call c) {
    extern __shared__ __align__(128) unsigned char smem[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int tile = (int)blockIdx.x * CHAINS + warp, tiles = c.f.part[0].n / TILE;
    ml_piece p = ml_find_piece(c.start, c.n_expert, 1, 8 * COLS, (int)blockIdx.y);
    float acc[1][COLS][4] = {};
    ml_barrier *full = (ml_barrier *)smem;

    if (p.index < 0)
        return;
    const ml_skinny_gemm f = piece_of<COLS>(c, p);
    const place at = { 0, tile * TILE, warp < CHAINS && tile < tiles };
    rows_ring rows = { (bf16 *)(smem + c.x), full, full + ML_ROW_SLOTS, f.m, {}, {} };
    auto weights = ring_of<W, 1>(f, at, smem + c.raw + (size_t)warp * c.stages * W::stage,
                                 full + 2 * ML_ROW_SLOTS + warp * c.stages, c.stages);

    if (warp < CHAINS && lane == 0)
        weights.open();
    else if (lane == 0)
        rows.open(tiles - (int)blockIdx.x * CHAINS < CHAINS
                      ? tiles - (int)blockIdx.x * CHAINS
                      : CHAINS);
    __syncthreads();
    if (warp == CHAINS)
        rows.fill(f.x, f.k);
    if (!at.has_work)
        return;
    weights.fill();
    stream_chains<W>(acc, weights, rows, f.k / STEP);
    put_rows<COLS>(
        f, acc, c.f.part[0].bias ? c.f.part[0].bias + (int64_t)p.owner * f.part[0].n : NULL,
        at.col + lane / 4 * 2);
}

/* ---- configuration and launch ---- */

template <class W> static void lay_out(expert_call *c, int cols) {
    size_t ring = CHAINS * W::stage;
    int n_step = c->f.k / STEP;

    c->x = align_up((size_t)(2 * ML_ROW_SLOTS + CHAINS * n_step) * sizeof(ml_barrier));
    c->raw =
        align_up(c->x + (size_t)(ML_ROW_SLOTS * 8 * cols * (STEP + PAD)) * sizeof(bf16));
    c->stages = c->raw + 2 * ring < EXPERT_SMEM ? (int)((EXPERT_SMEM - c->raw) / ring) : 2;
    c->stages = c->stages < n_step ? c->stages : n_step;
    c->bytes = c->raw + (size_t)c->stages * ring;
}

template <class W, int COLS> static void launch(ml_cuda_stream *s, expert_call *c) {
    auto kernel = expert_codes_kernel<W, COLS>;
    dim3 grid(ml_cuda_blocks(c->f.part[0].n, CHAINS * TILE),
              ml_most_pieces(c->f.m, c->n_expert, 8 * COLS));

    lay_out<W>(c, COLS);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)c->bytes),
                 "moe-linear");
    kernel<<<grid, (CHAINS + 1) * 32, c->bytes, s->stream>>>(*c);
    ml_cuda_launched(s, "moe-linear");
}

/* By the average rows of an expert. */
template <class W> static void by_rows(ml_cuda_stream *s, expert_call *c) {
    int each = c->f.m / c->n_expert;

    if (each <= 6)
        launch<W, 1>(s, c);
    else if (each <= 12)
        launch<W, 2>(s, c);
    else
        launch<W, 4>(s, c);
}

/* Whether experts with more than MOST_ROWS rows have a kernel. */
static bool takes_wgmma(const ml_cuda_stream *s, const expert_call &c) {
#if ML_WGMMA
    return c.f.m <= MOST_WGMMA_ROWS * c.n_expert && ml_codes_wgmma_supports(s, &c.f);
#else
    (void)s, (void)c;
    return false;
#endif
}

static void run_wgmma(ml_cuda_stream *s, const expert_call &c) {
#if ML_WGMMA
    ml_codes_wgmma_experts(s, &c.f, c.start, c.n_expert);
#else
    (void)s, (void)c;
#endif
}

bool ml_cuda_expert_codes(ml_cuda_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0];
    const bool few = x->shape[0] <= MOST_ROWS * w->shape[0] && w->shape[2] % STEP == 0;
    expert_call c = {};

    if (!s->early || x->dtype != ML_BF16 || !ml_codes_gemm_reads(w->dtype) ||
        w->shape[1] % TILE != 0)
        return false;
    c.f.x = (const bf16 *)x->data;
    c.f.m = (int)x->shape[0];
    c.f.k = (int)w->shape[2];
    c.f.weights = w->dtype;
    c.f.panel = ml_codes_panel_bytes(w->dtype, c.f.k);
    c.f.scales = ml_codes_scale_bytes(w->dtype, c.f.k);
    c.f.n_part = 1;
    c.f.part[0].w = w->data;
    c.f.part[0].bias = (const float *)a->w[1].data;
    c.f.part[0].y = (bf16 *)a->out[0].data;
    c.f.part[0].n = (int)w->shape[1];
    c.start = (const int32_t *)a->in[1].data;
    c.n_expert = (int)w->shape[0];
    c.expert = (size_t)(c.f.part[0].n / TILE) * c.f.panel;
    if (!few && !takes_wgmma(s, c))
        return false;
    if (!few)
        run_wgmma(s, c);
    else if (c.f.m > 0)
        WITH_CODES(w->dtype, by_rows<W>(s, &c));
    return true;
}
