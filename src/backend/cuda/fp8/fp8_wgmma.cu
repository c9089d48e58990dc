/* fp8_wgmma.cu - the product of FP8 codes on Hopper's tensor cores (fp8.cuh).
 *
 * Weights are the 64-row operand of wgmma, in registers; tokens are its columns, in shared memory.
 * A warp has the 16 outputs of one panel: ldmatrix transposes pairs of outputs, and two byte
 * permutations of its registers make those of the operand.  Row r of a warp's m16 tile is output
 * 2 r, row r + 8 is output 2 r + 1, so that a thread's two rows are neighbours in memory.
 *
 * A stage of shared memory has one group, 128 inputs, of a block's outputs and tokens.  One warp
 * issues the copies of the stages ahead; OUT teams (warpgroups) multiply 64 outputs each.  The partial
 * sums of groups do not depend on each other: with few tokens SPLIT teams share the outputs and
 * take groups in turn, then exchange the sums, and each continues the chains of some outputs. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    GROUP = 128,
    STEPS = GROUP / 32,            /* wgmma steps of a group */
    TEAM_PANELS = 64 / ML_LANES,   /* panels of a team: one for each warp */
    PANEL_BYTES = GROUP * ML_LANES /* codes of a group of a panel */
};

template <int TOKENS, int OUT, int SPLIT, int STAGES> struct tile {
    static const int teams = OUT * SPLIT, threads = teams * ML_WARPGROUP + 32;
    static const int panels = OUT * TEAM_PANELS, outputs = OUT * 64;
    static const int sums = TOKENS / 2;  /* partial sums of a thread */
    static const int own = sums / SPLIT; /* of which it continues the chains */
    static const int per_sm = TOKENS == 8 && STAGES == 8 ? 2 : 1;

    struct smem {
        struct {
            unsigned char x[TOKENS * GROUP], w[panels * PANEL_BYTES];
        } stage[STAGES];
        struct alignas(128) { /* teams still read them when the stage is released */
            float w[panels][ML_LANES], x[TOKENS];
        } scale[2 * STAGES];
        float sum[SPLIT > 1 ? 2 * SPLIT *sums : 1][SPLIT > 1 ? ML_WARPGROUP : 1];
        ml_barrier full[STAGES], empty[STAGES];
    };
};

extern __shared__ __align__(1024) unsigned char fp8_bytes[];

/* ---- instructions ---- */

#define SUMS_8 "{%0, %1, %2, %3}, "
#define SUMS_16 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
#define SUMS_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define ROWS_8(c) ML_WGMMA_ROW(c[0])
#define ROWS_16(c) ML_WGMMA_ROW(c[0]), ML_WGMMA_ROW(c[1])
#define ROWS_32(c) ROWS_16(c), ML_WGMMA_ROW(c[2]), ML_WGMMA_ROW(c[3])

/* c = a b', or c += a b'; a 64 x 32 codes in registers, b N x 32 in shared memory.  A, B and ADD are the
 * numbers of their asm operands. */
#define WGMMA_FP8(N, SUMS, ROWS, A0, A1, A2, A3, B, ADD)                                   \
    asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.b32 add, %" ADD ", 0;"             \
                 "mov.b64 b, {%" B ", " ML_PANEL_HI "};"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 " SUMS "{%" A0   \
                 ", %" A1 ", %" A2 ", %" A3 "}, b, add, 1, 1;}"                            \
                 : ROWS(c)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add))

template <int TOKENS>
__device__ static void multiply_step(float (&c)[TOKENS / 8][4], const uint32_t (&a)[4],
                                     uint32_t b, bool add) {
    if constexpr (TOKENS == 8)
        WGMMA_FP8("8", SUMS_8, ROWS_8, "4", "5", "6", "7", "8", "9");
    else if constexpr (TOKENS == 16)
        WGMMA_FP8("16", SUMS_16, ROWS_16, "8", "9", "10", "11", "12", "13");
    else if constexpr (TOKENS == 32)
        WGMMA_FP8("32", SUMS_32, ROWS_32, "16", "17", "18", "19", "20", "21");
    else if constexpr (TOKENS == 64)
        WGMMA_FP8("64", ML_WGMMA_SUMS, ML_WGMMA_ROWS, "32", "33", "34", "35", "36", "37");
    else
        WGMMA_FP8("128", ML_WGMMA_SUMS_128, ML_WGMMA_ROWS_128, "64", "65", "66", "67", "68",
                  "69");
}

/* Waits for all products; keeps the compiler from reading c earlier. */
template <int N> __device__ static void wait_sums(float (&c)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int j = 0; j < N; j++)
        asm volatile("" : ML_WGMMA_ROW(c[j])::"memory");
}

/* Arrives at b when this thread's copies (ml_copy_async4) have arrived. */
__device__ static void arrive_with_copies(ml_barrier *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ml_smem(b))
                 : "memory");
}

/* ---- tiles ---- */

struct place {
    ml_piece p; /* its expert, and that one's rows */
    int m0, n0; /* first row within the expert, first output */
    int panel0; /* first panel of the outputs, of all experts' */
};

/* Blocks that run at the same time share rows and weights: tiles are numbered through MOST_STRIPS
 * strips of rows first, then through the outputs. */
enum { MOST_STRIPS = 16 };

/* Strips of rows; experts end within one. */
__host__ __device__ static int count_strips(const ml_fp8_gemm &g, int tokens) {
    return (g.rows + tokens - 1) / tokens + g.n_expert;
}

/* All threads call it where there are experts. */
template <class TILE, int TOKENS>
__device__ static place find_place(const ml_fp8_gemm &g, int tile) {
    int panels = (g.n + ML_LANES - 1) / ML_LANES, strips = count_strips(g, TOKENS);
    int across = (g.n + TILE::outputs - 1) / TILE::outputs;
    int first = tile / (MOST_STRIPS * across) * MOST_STRIPS;
    int some = strips - first < MOST_STRIPS ? strips - first : MOST_STRIPS;
    int in = tile - first * across, strip = first + in % some;
    place t;

    if (g.start)
        t.p = ml_find_piece(g.start, g.n_expert, 1, TOKENS, strip);
    else
        t.p = { 0, strip, 0, g.rows };
    t.m0 = t.p.index * TOKENS;
    t.n0 = in / some * TILE::outputs;
    t.panel0 = t.p.owner * panels + t.n0 / ML_LANES;
    return t;
}

/* A block's tiles one after the other, and its groups, counted through all of them. */
template <class TILE, int TOKENS> struct walk {
    const ml_fp8_gemm &g;
    place t;
    int tile, tiles, groups;
    unsigned done; /* groups before this tile */

    __device__ explicit walk(const ml_fp8_gemm &gemm)
        : g(gemm), t(find_place<TILE, TOKENS>(gemm, (int)blockIdx.x)),
          tile((int)blockIdx.x), tiles(count_strips(gemm, TOKENS) *
                                       ((gemm.n + TILE::outputs - 1) / TILE::outputs)),
          groups((gemm.k + GROUP - 1) / GROUP), done(0) {}

    __device__ bool next(void) {
        tile += (int)gridDim.x;
        done += (unsigned)groups;
        if (g.start || tile >= tiles) /* experts' tiles have a block each */
            return false;
        t = find_place<TILE, TOKENS>(g, tile);
        return true;
    }
};

/* ---- copies ---- */

/* Tensor maps: pairs of input codes; 8 bytes of weight codes, and the scales, of each panel. */
struct maps {
    CUtensorMap x, w, scale;
};

/* One thread calls it; n counts groups through all tiles. */
template <class TILE, int STAGES, class SMEM>
__device__ static void copy_weights(SMEM &smem, const maps &m, const place &t, int group,
                                    unsigned n) {
    unsigned at = n % STAGES, slot = n % (2 * STAGES);

    ml_barrier_expect(&smem.full[at], sizeof smem.stage[0] + sizeof smem.scale[0].w);
    ml_tensor_copy(smem.stage[at].w, &m.w, group * PANEL_BYTES / 8, t.panel0, 0,
                   &smem.full[at]);
    ml_tensor_copy(smem.scale[slot].w, &m.scale, group * ML_LANES, t.panel0, 0,
                   &smem.full[at]);
}

template <int TOKENS, int STAGES, class SMEM>
__device__ static void copy_inputs(SMEM &smem, const maps &m, const ml_fp8_gemm &g,
                                   const place &t, int group, unsigned n) {
    int lane = (int)threadIdx.x % 32;
    const float *scale = g.x.scale + (int64_t)group * g.rows + t.p.first_row;
    float *to = smem.scale[n % (2 * STAGES)].x;

    if (lane == 0)
        ml_tensor_copy(smem.stage[n % STAGES].x, &m.x, group * GROUP / 2,
                       t.p.first_row + t.m0, 0, &smem.full[n % STAGES]);
    for (int i = lane; i < TOKENS; i += 32) {
        bool there = t.m0 + i < t.p.rows;
        ml_copy_async4(to + i, there ? scale + t.m0 + i : g.x.scale, there);
    }
    arrive_with_copies(&smem.full[n % STAGES]);
}

/* The copying warp.  The first weights are copied before the kernel in front has ended. */
template <class TILE, int TOKENS, int STAGES, class SMEM>
__device__ static void copy_stages(SMEM &smem, const maps &m, walk<TILE, TOKENS> w) {
    int ahead = w.groups < STAGES ? w.groups : STAGES;
    bool first = threadIdx.x % 32 == 0;

    for (int i = 0; first && i < ahead; i++)
        copy_weights<TILE, STAGES>(smem, m, w.t, i, (unsigned)i);
    __syncwarp();
    ml_grid_wait();
    for (int i = 0; i < ahead; i++)
        copy_inputs<TOKENS, STAGES>(smem, m, w.g, w.t, i, (unsigned)i);
    do {
        for (int i = w.done ? 0 : ahead; i < w.groups; i++) {
            unsigned n = w.done + (unsigned)i;
            if (n >= STAGES)
                ml_barrier_wait(&smem.empty[n % STAGES], (n / STAGES - 1) & 1);
            if (first)
                copy_weights<TILE, STAGES>(smem, m, w.t, i, n);
            copy_inputs<TOKENS, STAGES>(smem, m, w.g, w.t, i, n);
        }
    } while (w.next());
}

/* ---- products ---- */

/* The operand of a group from a panel's codes.  The rows of a matrix that ldmatrix loads are in
 * different banks: lanes of the upper half of k get the two matrices of a step exchanged. */
__device__ static void load_weights(uint32_t (&a)[STEPS][4], const unsigned char *panel) {
    int lane = (int)threadIdx.x % 32, quad = lane % 8 / 2;
    int k = lane / 16 * 16 + quad * 4 + lane % 2 + 2 * (lane / 8 % 2 ^ quad / 2);
    bool swapped = lane % 4 >= 2;
    uint32_t even = swapped ? 0x2064 : 0x6420, odd = swapped ? 0x3175 : 0x7531;

#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        uint32_t r[4];
        ml_ldmatrix4_trans(r, panel + (i * 32 + k) * ML_LANES);
        a[i][0] = __byte_perm(r[0], r[1], even);
        a[i][1] = __byte_perm(r[0], r[1], odd);
        a[i][2] = __byte_perm(r[2], r[3], even);
        a[i][3] = __byte_perm(r[2], r[3], odd);
    }
}

/* By each warp that has read a stage. */
__device__ static void release(ml_barrier *empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ml_barrier_arrive(empty);
}

/* The sums of a group, when its stage has arrived; n counts groups through all tiles.  Until they are
 * complete, wgmma reads the registers of the weights. */
template <int TOKENS, int STAGES, class SMEM>
__device__ static void multiply_group(float (&sum)[TOKENS / 8][4], SMEM &smem, int panel,
                                      unsigned n) {
    unsigned at = n % STAGES;
    uint32_t a[STEPS][4], b = ml_panel((const bf16 *)smem.stage[at].x);

    ml_barrier_wait(&smem.full[at], n / STAGES & 1);
    load_weights(a, smem.stage[at].w + panel * PANEL_BYTES);
    ml_wgmma_fence(a);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_step<TOKENS>(sum, a[i], ml_panel_columns(b, i), i > 0);
    ml_wgmma_commit();
    wait_sums(sum);
    release(&smem.empty[at]);
}

/* Element e of a thread's sums: of token 8 (e / 4) + 2 (lane % 4) + e / 2 % 2, output e % 2. */
__device__ static int token_of(int e) {
    return e / 4 * 8 + (int)threadIdx.x % 4 * 2 + e / 2 % 2;
}

template <int N> __device__ static float &element(float (&sum)[N][4], int e) {
    return sum[e / 4][e % 2 * 2 + e / 2 % 2];
}

/* The scales of a thread's two outputs. */
__device__ static float2 weight_scales(const float *panel) {
    return *(const float2 *)(panel + threadIdx.x % 32 / 4 * 2);
}

template <int N, int TOKENS>
__device__ static void add_group(float (&acc)[N], const float (&sum)[TOKENS / 8][4],
                                 const float *scale, float2 weight) {
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        float2 s = *(const float2 *)(scale + j * 8 + threadIdx.x % 4 * 2);
        acc[4 * j] = fmaf(sum[j][0], s.x * weight.x, acc[4 * j]);
        acc[4 * j + 1] = fmaf(sum[j][2], s.x * weight.y, acc[4 * j + 1]);
        acc[4 * j + 2] = fmaf(sum[j][1], s.y * weight.x, acc[4 * j + 2]);
        acc[4 * j + 3] = fmaf(sum[j][3], s.y * weight.y, acc[4 * j + 3]);
    }
}

/* One team has all groups. */
template <class TILE, int TOKENS, int STAGES, class SMEM>
__device__ static void multiply(float (&acc)[TILE::own], SMEM &smem,
                                const walk<TILE, TOKENS> &w, int panel) {
    float sum[TOKENS / 8][4] = {};

    for (int i = 0; i < w.groups; i++) {
        unsigned n = w.done + (unsigned)i;
        multiply_group<TOKENS, STAGES>(sum, smem, panel, n);
        add_group<TILE::own, TOKENS>(acc, sum, smem.scale[n % (2 * STAGES)].x,
                                     weight_scales(smem.scale[n % (2 * STAGES)].w[panel]));
    }
}

/* Of the threads of all teams. */
template <class TILE> __device__ static void sync_teams(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)(TILE::teams * ML_WARPGROUP)) : "memory");
}

/* Teams take groups in turn.  When the scales of a group are overwritten, all teams are two rounds
 * further. */
template <class TILE, int TOKENS, int SPLIT, int STAGES, class SMEM>
__device__ static void multiply_split(float (&acc)[TILE::own], SMEM &smem,
                                      const walk<TILE, TOKENS> &w, int panel, int team) {
    int thread = (int)threadIdx.x % ML_WARPGROUP;
    float sum[TOKENS / 8][4] = {};

    for (int first = 0, buf = 0; first < w.groups; first += SPLIT, buf ^= 1) {
        unsigned n = (unsigned)(first + team);
        float(*to)[ML_WARPGROUP] = smem.sum + (buf * SPLIT + team) * TILE::sums;
        if (first + team < w.groups) {
            multiply_group<TOKENS, STAGES>(sum, smem, panel, n);
#pragma unroll
            for (int e = 0; e < TILE::sums; e++)
                to[e][thread] = element(sum, e);
        }
        sync_teams<TILE>();
#pragma unroll
        for (int i = 0; i < SPLIT; i++) {
            const float(*from)[ML_WARPGROUP] = smem.sum + (buf * SPLIT + i) * TILE::sums;
            int slot = (first + i) % (2 * STAGES);
            if (first + i >= w.groups)
                break;
#pragma unroll
            for (int j = 0; j < TILE::own; j++) {
                int e = team * TILE::own + j;
                float2 weight = weight_scales(smem.scale[slot].w[panel]);
                acc[j] =
                    fmaf(from[e][thread],
                         smem.scale[slot].x[token_of(e)] * (e % 2 ? weight.y : weight.x),
                         acc[j]);
            }
        }
    }
}

/* ---- results ---- */

__device__ static float biased(const ml_fp8_gemm &g, const place &t, float sum, int col) {
    return g.bias && col < g.n ? sum + g.bias[(int64_t)t.p.owner * g.n + col] : sum;
}

/* A thread's elements from `first` on. */
template <int N>
__device__ static void put(const float (&acc)[N], const ml_fp8_gemm &g, const place &t,
                           int panel, int first) {
    int col = t.n0 + panel * ML_LANES + (int)threadIdx.x % 32 / 4 * 2;

#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = t.m0 + token_of(first + i), at = col + (first + i) % 2;
        bf16 *y = g.y + (int64_t)(t.p.first_row + row) * g.n + at;
        if (row >= t.p.rows || at >= g.n)
            continue;
        if (N % 2 == 0 && g.n % 2 == 0) {
            float pair[2] = { biased(g, t, acc[i], at),
                              biased(g, t, acc[(i + 1) % N], at + 1) };
            if (i % 2 == 0)
                ml_store(y, pair);
        } else {
            *y = ml_as<bf16>(biased(g, t, acc[i], at));
        }
    }
}

template <int TOKENS, int OUT, int SPLIT, int STAGES>
__global__ void __launch_bounds__(tile<TOKENS, OUT, SPLIT, STAGES>::threads,
                                  tile<TOKENS, OUT, SPLIT, STAGES>::per_sm)
    fp8_kernel(const __grid_constant__ maps m, const ml_fp8_gemm g) {
    typedef tile<TOKENS, OUT, SPLIT, STAGES> tl;
    static_assert(SPLIT == 1 || OUT == 1, "teams share outputs or have their own");
    static_assert(STAGES >= 2 * SPLIT, "scales are kept for two rounds");
    typename tl::smem &smem = *(typename tl::smem *)fp8_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);
    int panel = (SPLIT > 1 ? 0 : team * TEAM_PANELS) + (int)threadIdx.x / 32 % TEAM_PANELS;

    ml_grid_release();
    if (g.start)
        ml_grid_wait(); /* for the experts' rows */
    walk<tl, TOKENS> w(g);
    if (w.t.p.index < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            ml_barrier_init(&smem.full[i], 1 + 32);
            ml_barrier_init(&smem.empty[i], OUT * ML_WARPGROUP / 32);
        }
        ml_barrier_init_end();
    }
    __syncthreads();
    if (team == tl::teams) {
        copy_stages<tl, TOKENS, STAGES>(smem, m, w);
        return;
    }
    ml_grid_wait();
    do {
        float acc[tl::own] = {};
        if constexpr (SPLIT == 1)
            multiply<tl, TOKENS, STAGES>(acc, smem, w, panel);
        else
            multiply_split<tl, TOKENS, SPLIT, STAGES>(acc, smem, w, panel, team);
        put(acc, g, w.t, panel, SPLIT > 1 ? team * tl::own : 0);
    } while (SPLIT == 1 && w.next());
}

/* ---- launching ---- */

static int count_sms(void) {
    int n = 0;

    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0);
    return n > 0 ? n : 1;
}

/* Rows of words or pairs of codes, of which a copy brings `box_rows` of `box_cols`. */
static ml_tensor_box box_of(const void *at, int word, int64_t cols, int64_t rows,
                            int64_t row_stride, int box_cols, int box_rows) {
    ml_tensor_box b = {};

    b.at = at;
    b.word = word;
    b.cols = cols;
    b.rows = rows;
    b.count = 1;
    b.row_stride = row_stride;
    b.stride = row_stride * rows;
    b.box_cols = box_cols;
    b.box_rows = box_rows;
    return b;
}

static maps make_maps(ml_cuda_stream *s, const ml_fp8_gemm &g, int tokens, int panels) {
    int64_t width = ml_cuda_fp8_width(g.k), all = ml_cuda_blocks(g.n, ML_LANES);
    const ml_tensor_box x =
        box_of(g.x.code, 0, width / 2, g.rows, width / 2, GROUP / 2, tokens);
    const int64_t stacked = all * (g.n_expert ? g.n_expert : 1);
    const ml_tensor_box w = box_of(g.w + g.scales, 8, (g.k + 7) / 8 * 8 * ML_LANES / 8,
                                   stacked, (int64_t)g.panel / 8, PANEL_BYTES / 8, panels);
    const ml_tensor_box scale = box_of(g.w, 4, width / GROUP * ML_LANES, stacked,
                                       (int64_t)g.panel / 4, ML_LANES, panels);
    maps m;

    ml_cuda_note(s, ml_tensor_map(&m.x, &x), "an FP8 product");
    ml_cuda_note(s, ml_tensor_map(&m.w, &w), "an FP8 product");
    ml_cuda_note(s, ml_tensor_map(&m.scale, &scale), "an FP8 product");
    return m;
}

template <int TOKENS, int OUT, int SPLIT, int STAGES>
static void launch(ml_cuda_stream *s, const ml_fp8_gemm &g) {
    typedef tile<TOKENS, OUT, SPLIT, STAGES> tl;
    static const int sms = count_sms();
    auto kernel = fp8_kernel<TOKENS, OUT, SPLIT, STAGES>;
    int tiles = count_strips(g, TOKENS) * (int)ml_cuda_blocks(g.n, tl::outputs);

    if (SPLIT == 1 && !g.start && tiles > tl::per_sm * sms)
        tiles = tl::per_sm * sms;
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(typename tl::smem)),
                 "an FP8 product");
    ml_cuda_launch(s, "an FP8 product", kernel, dim3((unsigned)tiles), tl::threads,
                   sizeof(typename tl::smem), make_maps(s, g, TOKENS, tl::panels), g);
}

enum { ONE_WAVE = 132 * 64 }; /* outputs of the SMs of an H200, in tiles of 64 */

/* Chooses the tile.  Few tokens leave time for exchanging sums; with many, the bytes of rows and weights
 * that the L2 cache delivers bound the time, and the widest tile reads least. */
void ml_fp8_gemm_run(ml_cuda_stream *s, const ml_fp8_gemm *g) {
    int64_t each = g->start ? g->rows / g->n_expert : g->rows;

    if (g->rows == 0 || g->n == 0)
        return;
    if (each <= 8 && !g->start && g->n <= ONE_WAVE)
        launch<8, 1, 4, 16>(s, *g); /* an SM has one block, which copies further ahead */
    else if (each <= 8)
        launch<8, 1, 4, 8>(s, *g);
    else if (each <= 16)
        launch<16, 1, 4, 12>(s, *g);
    else if (each <= 32)
        launch<32, 1, 2, 12>(s, *g);
    else if (each <= 64)
        launch<64, 1, 2, 8>(s, *g);
    else
        launch<128, 2, 1, 6>(s, *g);
}
