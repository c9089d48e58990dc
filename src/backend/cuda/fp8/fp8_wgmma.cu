/* fp8_wgmma.cu - the product of FP8 codes on Hopper's tensor cores (fp8.cuh).
 *
 * Outputs or tokens are the 64-row operand of wgmma, the other ones its columns; both come from shared memory, and
 * the sums are the same.  With few tokens the rows are outputs: a thread has two of them, with a scale each, and
 * multiplies these by the scale of each of its tokens.  Where blocks of 128 outputs share their scales, more tokens
 * are the rows (BY_TOKEN): a thread has two of these and needs two to four such products for a group.
 *
 * Tensor copies bring 16 outputs as two matrices of 8 rows, even and odd ones, so that a thread's outputs are
 * neighbours in memory.
 *
 * A stage of shared memory has one group, 128 inputs, of a block's outputs and tokens.  One thread starts the
 * copies of codes, and a warp those of the inputs' scales: the loops of both are short, because a warp alone takes
 * several cycles for each of its instructions, and a stage has no more than 256 to 768.  The teams (warpgroups) of
 * a block divide its rows or, with few tokens, the groups (SPLIT): the partial sums of groups do not depend on each
 * other, so that teams take groups in turn, then exchange the sums, and each continues the chains of some outputs.
 * With AHEAD tensor cores compute a group while the one before it is added.
 *
 * GATED: the weights of a gate and of an up projection behind it, SwiGLU of their outputs, and its FP8 codes.  A
 * tile has 64 tokens and 128 outputs of each: one team has the gate's, the other one the up's.  Then they exchange
 * halves of their outputs, thread by thread, and each team has all outputs of half of the tokens, with the groups
 * whose largest number their scales need.  Two blocks with the same outputs are a cluster, and each copies one of
 * both weights to both. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/glu.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    GROUP = 128,
    BLOCK = 128,                    /* outputs that share scales */
    STEPS = GROUP / 32,             /* wgmma steps of a group */
    TEAM_ROWS = 64,                 /* of wgmma's first operand */
    PANEL_BYTES = GROUP * ML_LANES, /* codes of a group of 16 outputs */
    COPY_REGISTERS = 40
};

template <int TOKENS, int OUTPUTS, int SPLIT, int STAGES, bool BY_TOKEN = false,
          bool AHEAD = false, bool GATED = false>
struct tile {
    static const int tokens = TOKENS, outputs = OUTPUTS, split = SPLIT, stages = STAGES;
    static const bool by_token = BY_TOKEN, ahead = AHEAD, gated = GATED;
    static const int weights = GATED ? 2 : 1, cluster = GATED ? 2 : 1;
    static const int teams = (BY_TOKEN ? TOKENS : OUTPUTS) / TEAM_ROWS * SPLIT * weights;
    static const int threads = (teams + 1) * ML_WARPGROUP;
    static const int panels = OUTPUTS / ML_LANES; /* of a weight */
    static const int columns = BY_TOKEN ? OUTPUTS : TOKENS;
    static const int sums = columns / 2; /* partial sums of a thread */
    static const int own = sums / SPLIT; /* of which it continues the chains */
    /* Registers of the teams' threads, which get those of the copying warps; 0: as launched. */
    static const int registers = SPLIT > 1 || teams != 2 ? 0 : 232;
    static const int per_sm = TOKENS == 8 && STAGES == 8 ? 2 : 1;

    struct smem_type {
        struct {
            unsigned char x[TOKENS * GROUP], w[weights][panels * PANEL_BYTES];
        } stage[STAGES];
        struct alignas(128) { /* teams still read them when the stage is released */
            float x[TOKENS];
        } scale[2 * STAGES];
        float sum[SPLIT > 1 ? 2 * SPLIT *sums : 1][SPLIT > 1 ? ML_WARPGROUP : 1];
        /* Pairs of outputs that a team gives to the other one. */
        uint32_t given[GATED ? 2 : 1][GATED ? own / 4 : 1][GATED ? ML_WARPGROUP : 1];
        ml_barrier full[STAGES], empty[STAGES];
    };
    static_assert(SPLIT == 1 || OUTPUTS == TEAM_ROWS,
                  "teams share outputs or have their own");
    static_assert(STAGES >= 2 * SPLIT && STAGES % SPLIT == 0,
                  "scales are kept for two rounds");
    static_assert(!GATED || (BY_TOKEN && TOKENS == TEAM_ROWS && OUTPUTS == BLOCK),
                  "a team has the tile's tokens and a group of outputs");
    static_assert(sizeof(smem_type) <= 227 << 10, "the shared memory of a block");
};

extern __shared__ __align__(1024) unsigned char fp8_bytes[];

/* ---- instructions ---- */

#define SUMS_8 "{%0, %1, %2, %3}, "
#define SUMS_16 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
#define SUMS_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define SUMS_96                                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define SUMS_192                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "     \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "     \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
#define ROWS_192(c) ML_WGMMA_ROWS_128(c), ML_WGMMA_ROWS((c + 16))
#define ROWS_96(c) ML_WGMMA_ROWS(c), ROWS_32((c + 8))
#define ROWS_8(c) ML_WGMMA_ROW(c[0])
#define ROWS_16(c) ML_WGMMA_ROW(c[0]), ML_WGMMA_ROW(c[1])
#define ROWS_32(c) ROWS_16(c), ML_WGMMA_ROW(c[2]), ML_WGMMA_ROW(c[3])

/* c = a b', or c += a b'; a 64 x 32 and b N x 32 codes in shared memory.  A, B and ADD are the numbers of
 * their asm operands. */
#define WGMMA_FP8(N, SUMS, ROWS, A, B, ADD)                                                \
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.b32 add, %" ADD ", 0;"          \
                 "mov.b64 a, {%" A ", " ML_PANEL_HI "};"                                   \
                 "mov.b64 b, {%" B ", " ML_PANEL_HI "};"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 " SUMS           \
                 "a, b, add, 1, 1;}"                                                       \
                 : ROWS(c)                                                                 \
                 : "r"(a), "r"(b), "r"((int)add))

template <int COLUMNS>
__device__ static void multiply_step(float (&c)[COLUMNS / 8][4], uint32_t a, uint32_t b,
                                     bool add) {
    if constexpr (COLUMNS == 8)
        WGMMA_FP8("8", SUMS_8, ROWS_8, "4", "5", "6");
    else if constexpr (COLUMNS == 16)
        WGMMA_FP8("16", SUMS_16, ROWS_16, "8", "9", "10");
    else if constexpr (COLUMNS == 32)
        WGMMA_FP8("32", SUMS_32, ROWS_32, "16", "17", "18");
    else if constexpr (COLUMNS == 64)
        WGMMA_FP8("64", ML_WGMMA_SUMS, ML_WGMMA_ROWS, "32", "33", "34");
    else if constexpr (COLUMNS == 96)
        WGMMA_FP8("96", SUMS_96, ROWS_96, "48", "49", "50");
    else if constexpr (COLUMNS == 128)
        WGMMA_FP8("128", ML_WGMMA_SUMS_128, ML_WGMMA_ROWS_128, "64", "65", "66");
    else
        WGMMA_FP8("192", SUMS_192, ROWS_192, "96", "97", "98");
}

/* Waits for the products of all groups but the last LATER; keeps the compiler from reading c earlier. */
template <int LATER, int N> __device__ static void wait_sums(float (&c)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
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

/* Strips of a cluster's rows; experts end within one. */
template <class TILE> __host__ __device__ static int count_strips(const ml_fp8_gemm &g) {
    const int tokens = TILE::tokens * TILE::cluster;

    return (g.rows + tokens - 1) / tokens + g.n_expert;
}

/* Of clusters. */
template <class TILE> __host__ __device__ static int count_tiles(const ml_fp8_gemm &g) {
    return count_strips<TILE>(g) * ((g.n + TILE::outputs - 1) / TILE::outputs);
}

/* All threads call it where there are experts. */
template <class TILE> __device__ static place find_place(const ml_fp8_gemm &g, int tile) {
    int panels = (g.n + ML_LANES - 1) / ML_LANES, strips = count_strips<TILE>(g);
    int across = (g.n + TILE::outputs - 1) / TILE::outputs;
    int first = tile / (MOST_STRIPS * across) * MOST_STRIPS;
    int some = strips - first < MOST_STRIPS ? strips - first : MOST_STRIPS;
    int in = tile - first * across, strip = first + in % some;
    place t;

    strip = strip * TILE::cluster + (int)blockIdx.x % TILE::cluster;
    if (g.start)
        t.p = ml_find_piece(g.start, g.n_expert, 1, TILE::tokens, strip);
    else
        t.p = { 0, strip, 0, g.rows };
    t.m0 = t.p.index * TILE::tokens;
    t.n0 = in / some * TILE::outputs;
    t.panel0 = t.p.owner * panels + t.n0 / ML_LANES;
    return t;
}

/* A block's tiles one after the other. */
template <class TILE> struct walk {
    const ml_fp8_gemm &g;
    place t;
    int tile, tiles, groups;

    __device__ explicit walk(const ml_fp8_gemm &gemm)
        : g(gemm), t(find_place<TILE>(gemm, (int)blockIdx.x / TILE::cluster)),
          tile((int)blockIdx.x / TILE::cluster), tiles(count_tiles<TILE>(gemm)),
          groups((gemm.k + GROUP - 1) / GROUP) {}

    __device__ bool next(void) {
        tile += (int)gridDim.x / TILE::cluster;
        if (TILE::split > 1 || g.start || tile >= tiles) /* these have a block each */
            return false;
        t = find_place<TILE>(g, tile);
        return true;
    }
};

/* The stages, one after the other through all groups of all tiles. */
template <class TILE> struct ring {
    int slot = 0;
    unsigned turn = 0; /* its parity */

    __device__ void step(int n = 1) {
        slot += n;
        if (slot >= TILE::stages) {
            slot -= TILE::stages;
            turn ^= 1;
        }
    }

    /* The scales of inputs, twice as many as stages. */
    __device__ int scale(void) const {
        return (turn ? TILE::stages : 0) + slot;
    }
};

/* ---- copies ---- */

/* Tensor maps: pairs of input codes; weight codes. */
struct maps {
    CUtensorMap x, w;
};

/* Of one thread: the codes of a group. */
template <class TILE>
__device__ static void copy_weights(typename TILE::smem_type &smem, const maps &m,
                                    const ml_fp8_gemm &g, const place &t, int slot,
                                    int group) {
    ml_barrier_expect(&smem.full[slot], sizeof smem.stage[0]);
    if constexpr (TILE::gated) { /* each block of the cluster copies one of both to both */
        const int which = (int)blockIdx.x % TILE::cluster;
        ml_tensor_multicast_panels(smem.stage[slot].w[which], &m.w, group * GROUP,
                                   t.panel0 + which * g.n / ML_LANES, &smem.full[slot], 3);
    } else {
        ml_tensor_copy_panels(smem.stage[slot].w[0], &m.w, group * GROUP, t.panel0,
                              &smem.full[slot]);
    }
}

template <class TILE>
__device__ static void copy_inputs(typename TILE::smem_type &smem, const maps &m,
                                   const place &t, int slot, int group) {
    ml_tensor_copy(smem.stage[slot].x, &m.x, group * (GROUP / 2), t.p.first_row + t.m0, 0,
                   &smem.full[slot]);
}

/* One thread calls it.  The first weights are copied before the kernel in front has ended. */
template <class TILE>
__device__ static void copy_codes(typename TILE::smem_type &smem, const maps &m,
                                  walk<TILE> w) {
    int ahead = w.groups < TILE::stages ? w.groups : TILE::stages, first = ahead;
    bool again = ahead == TILE::stages; /* stages have been used before */
    ring<TILE> at;

    for (int i = 0; i < ahead; i++)
        copy_weights<TILE>(smem, m, w.g, w.t, i, i);
    ml_grid_wait();
    for (int i = 0; i < ahead; i++)
        copy_inputs<TILE>(smem, m, w.t, i, i);
    at.step(ahead);
    do {
        for (int i = first; i < w.groups; i++, at.step()) {
            if (again)
                ml_barrier_wait(&smem.empty[at.slot], at.turn ^ 1);
            copy_weights<TILE>(smem, m, w.g, w.t, at.slot, i);
            copy_inputs<TILE>(smem, m, w.t, at.slot, i);
            again |= at.slot == TILE::stages - 1;
        }
        first = 0;
    } while (w.next());
}

/* The scales of the inputs, by one warp. */
template <class TILE>
__device__ static void copy_scales(typename TILE::smem_type &smem, walk<TILE> w) {
    const int each = (TILE::tokens + 31) / 32;
    int lane = (int)threadIdx.x % 32;
    bool again = false;
    ring<TILE> at;

    ml_grid_wait();
    do {
        const float *from = w.g.x.scale + w.t.p.first_row + w.t.m0 + lane;
        int left = w.t.p.rows - w.t.m0 - lane;
        for (int i = 0; i < w.groups; i++, at.step(), from += w.g.rows) {
            float *to = smem.scale[at.scale()].x + lane;
            if (again)
                ml_barrier_wait(&smem.empty[at.slot], at.turn ^ 1);
#pragma unroll
            for (int j = 0; j < each; j++)
                if (TILE::tokens % 32 == 0 || lane < TILE::tokens)
                    ml_copy_async4(to + j * 32, j * 32 < left ? from + j * 32 : w.g.x.scale,
                                   j * 32 < left);
            arrive_with_copies(&smem.full[at.slot]);
            again |= at.slot == TILE::stages - 1;
        }
    } while (w.next());
}

/* ---- products ---- */

/* By each warp that has read a stage, to which all blocks of the cluster copy. */
template <int CLUSTER> __device__ static void release(ml_barrier *empty) {
    int lane = (int)threadIdx.x % 32;

    __syncwarp();
    if (CLUSTER == 1 && lane == 0)
        ml_barrier_arrive(empty);
    if (CLUSTER > 1 && lane < CLUSTER)
        ml_barrier_arrive_at(empty, lane);
}

/* Starts the sums of a group, of the team's rows, when its stage has arrived. */
template <class TILE>
__device__ static void start_group(float (&sum)[TILE::columns / 8][4],
                                   typename TILE::smem_type &smem, int team,
                                   const ring<TILE> &at) {
    const uint32_t stage = (uint32_t)(sizeof smem.stage[0] >> 4);
    const unsigned char *x = smem.stage[0].x, *w = smem.stage[0].w[TILE::gated ? team : 0];
    const unsigned char *rows =
        (TILE::by_token ? x : w) + (TILE::gated ? 0 : team * (TEAM_ROWS * GROUP));
    uint32_t a = ml_panel((const bf16 *)rows) + (uint32_t)at.slot * stage;
    uint32_t b =
        ml_panel((const bf16 *)(TILE::by_token ? w : x)) + (uint32_t)at.slot * stage;

    ml_barrier_wait(&smem.full[at.slot], at.turn);
    ml_wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_step<TILE::columns>(sum, ml_panel_columns(a, i), ml_panel_columns(b, i),
                                     i > 0);
    ml_wgmma_commit();
}

/* The sums of a group are complete, and those of LATER groups after it are not. */
template <class TILE, int LATER>
__device__ static void end_group(float (&sum)[TILE::columns / 8][4],
                                 typename TILE::smem_type &smem, const ring<TILE> &at) {
    wait_sums<LATER>(sum);
    release<TILE::cluster>(&smem.empty[at.slot]);
}

/* Rows are outputs: element e of a thread's sums is of token 8 (e / 4) + 2 (lane % 4) + e / 2 % 2, output e % 2. */
__device__ static int token_of(int e) {
    return e / 4 * 8 + (int)threadIdx.x % 4 * 2 + e / 2 % 2;
}

template <int N> __device__ static float &element(float (&sum)[N][4], int e) {
    return sum[e / 4][e % 2 * 2 + e / 2 % 2];
}

/* The scales of two outputs, of four groups at a time: those of the next four are loaded while these are
 * used. */
struct weight_scales {
    const float4 *row[2];
    float4 now[2], next[2];

    /* Of outputs `first` and `second` of the tile's weight. */
    __device__ weight_scales(const ml_fp8_gemm &g, const place &t, int first, int second) {
        int64_t outputs =
            (int64_t)(g.n + ML_LANES - 1) / ML_LANES * ML_LANES * (g.gated.code ? 2 : 1);
        const unsigned char *w = g.w + t.p.owner * outputs * g.ld + g.scales;

        row[0] = (const float4 *)(w + (first < outputs ? first : 0) * g.ld);
        row[1] = (const float4 *)(w + (second < outputs ? second : 0) * g.ld);
        load(0);
    }

    __device__ void load(int four) {
        next[0] = __ldg(row[0] + four);
        next[1] = __ldg(row[1] + four);
    }

    /* When group 4 `four` begins, of `groups`. */
    __device__ void step(int four, int groups) {
        now[0] = next[0];
        now[1] = next[1];
        if (4 * four + 4 < groups)
            load(four + 1);
    }

    /* Group i of the four. */
    __device__ float2 at(int i) const {
        return make_float2(pick(now[0], i), pick(now[1], i));
    }

    __device__ static float pick(const float4 &v, int i) {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }
};

/* Those of a thread: of its two outputs, or of the first and the last block of the tile's or team's. */
template <class TILE>
__device__ static weight_scales scales_of(const ml_fp8_gemm &g, const place &t, int row,
                                          int team) {
    if (TILE::gated)
        return weight_scales(g, t, t.n0 + team * g.n, t.n0 + team * g.n);
    if (!TILE::by_token)
        return weight_scales(g, t, t.n0 + row, t.n0 + row + 1);
    return weight_scales(g, t, t.n0 / BLOCK * BLOCK,
                         (t.n0 + TILE::outputs - 1) / BLOCK * BLOCK);
}

/* The first of a thread's two rows in the tile: outputs are neighbours, tokens 8 apart. */
template <class TILE> __device__ static int row_of(int team) {
    int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;

    return (TILE::gated ? 0 : team * TEAM_ROWS) + warp * 16 +
           lane / 4 * (TILE::by_token ? 1 : 2);
}

/* Adds the sums of a group.  Rows are outputs. */
template <class TILE>
__device__ static void add_to_outputs(float (&acc)[TILE::own],
                                      const float (&sum)[TILE::columns / 8][4],
                                      const float *scale, float2 weight) {
#pragma unroll
    for (int j = 0; j < TILE::columns / 8; j++) {
        float2 s = *(const float2 *)(scale + j * 8 + threadIdx.x % 4 * 2);
        acc[4 * j] = fmaf(sum[j][0], s.x * weight.x, acc[4 * j]);
        acc[4 * j + 1] = fmaf(sum[j][2], s.x * weight.y, acc[4 * j + 1]);
        acc[4 * j + 2] = fmaf(sum[j][1], s.y * weight.x, acc[4 * j + 2]);
        acc[4 * j + 3] = fmaf(sum[j][3], s.y * weight.y, acc[4 * j + 3]);
    }
}

/* Rows are tokens.  Outputs from `second` on are of the tile's second block. */
template <class TILE>
__device__ static void add_to_tokens(float (&acc)[TILE::own],
                                     const float (&sum)[TILE::columns / 8][4],
                                     const float *scale, float2 weight, int second) {
    float x[2] = { scale[0], scale[8] };
    float s[2][2] = { { x[0] * weight.x, x[1] * weight.x },
                      { x[0] * weight.y, x[1] * weight.y } };

#pragma unroll
    for (int j = 0; j < TILE::columns / 8; j++) {
        bool later = BLOCK % TILE::outputs != 0 && j / 4 * 32 >= second;
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[4 * j + k] =
                fmaf(sum[j][k], later ? s[1][k / 2] : s[0][k / 2], acc[4 * j + k]);
    }
}

template <class TILE>
__device__ static void add_group(float (&acc)[TILE::own],
                                 const float (&sum)[TILE::columns / 8][4],
                                 typename TILE::smem_type &smem, const place &t, int row,
                                 const ring<TILE> &at, float2 weight) {
    const float *scale = smem.scale[at.scale()].x;

    if constexpr (TILE::by_token)
        add_to_tokens<TILE>(acc, sum, scale + row, weight, BLOCK - t.n0 % BLOCK);
    else
        add_to_outputs<TILE>(acc, sum, scale, weight);
}

/* One team has all groups. */
template <class TILE>
__device__ static void multiply(float (&acc)[TILE::own], typename TILE::smem_type &smem,
                                const walk<TILE> &w, int team, ring<TILE> &at) {
    int row = row_of<TILE>(team);
    weight_scales weight = scales_of<TILE>(w.g, w.t, row, team);
    float sum[TILE::columns / 8][4];

    for (int first = 0; first < w.groups; first += 4) {
        weight.step(first / 4, w.groups);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i >= w.groups)
                break;
            start_group<TILE>(sum, smem, team, at);
            end_group<TILE, 0>(sum, smem, at);
            add_group<TILE>(acc, sum, smem, w.t, row, at, weight.at(i));
            at.step();
        }
    }
}

/* With AHEAD.  ptxas serializes wgmma where sums are read while those of a group that was started in an earlier
 * turn of the loop are pending: so four groups are a turn. */
template <class TILE>
__device__ static void multiply_ahead(float (&acc)[TILE::own],
                                      typename TILE::smem_type &smem, const walk<TILE> &w,
                                      int team, ring<TILE> &at) {
    int row = row_of<TILE>(team), first = 0;
    weight_scales weight = scales_of<TILE>(w.g, w.t, row, team);
    float sum[2][TILE::columns / 8][4];

    for (; first + 4 <= w.groups; first += 4) {
        weight.step(first / 4, w.groups);
        start_group<TILE>(sum[0], smem, team, at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ring<TILE> now = at;
            at.step();
            if (i < 3) {
                start_group<TILE>(sum[(i + 1) % 2], smem, team, at);
                end_group<TILE, 1>(sum[i % 2], smem, now);
            } else {
                end_group<TILE, 0>(sum[i % 2], smem, now);
            }
            add_group<TILE>(acc, sum[i % 2], smem, w.t, row, now, weight.at(i));
        }
    }
    if (first < w.groups)
        weight.step(first / 4, w.groups);
    for (int i = first; i < w.groups; i++, at.step()) {
        start_group<TILE>(sum[0], smem, team, at);
        end_group<TILE, 0>(sum[0], smem, at);
        add_group<TILE>(acc, sum[0], smem, w.t, row, at, weight.at(i - first));
    }
}

/* Of the threads of all teams. */
template <class TILE> __device__ static void sync_teams(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)(TILE::teams * ML_WARPGROUP)) : "memory");
}

/* Teams take groups in turn.  When the scales of a group are overwritten, all teams are two rounds
 * further. */
template <class TILE>
__device__ static void multiply_split(float (&acc)[TILE::own],
                                      typename TILE::smem_type &smem, const walk<TILE> &w,
                                      int team) {
    const int split = TILE::split;
    int thread = (int)threadIdx.x % ML_WARPGROUP;
    weight_scales weight = scales_of<TILE>(w.g, w.t, row_of<TILE>(0), team);
    float sum[TILE::columns / 8][4];
    ring<TILE> round; /* of the first team's group */

    for (int first = 0, buf = 0; first < w.groups;
         first += split, buf ^= 1, round.step(split)) {
        float(*to)[ML_WARPGROUP] = smem.sum + (buf * split + team) * TILE::sums;
        if (first % 4 == 0)
            weight.step(first / 4, w.groups);
        if (first + team < w.groups) {
            ring<TILE> at = round;
            at.slot += team;
            start_group<TILE>(sum, smem, 0, at);
            end_group<TILE, 0>(sum, smem, at);
#pragma unroll
            for (int e = 0; e < TILE::sums; e++)
                to[e][thread] = element(sum, e);
        }
        sync_teams<TILE>();
#pragma unroll
        for (int i = 0; i < split; i++) {
            const float(*from)[ML_WARPGROUP] = smem.sum + (buf * split + i) * TILE::sums;
            float2 scale = weight.at(first % 4 + i);
            if (first + i >= w.groups)
                break;
#pragma unroll
            for (int j = 0; j < TILE::own; j++) {
                int e = team * TILE::own + j;
                float x = smem.scale[round.scale() + i].x[token_of(e)];
                acc[j] = fmaf(from[e][thread], x * (e % 2 ? scale.y : scale.x), acc[j]);
            }
        }
    }
}

/* ---- results ---- */

__device__ static float biased(const ml_fp8_gemm &g, const place &t, float sum, int col) {
    return g.bias && col < g.n ? sum + g.bias[(int64_t)t.p.owner * g.n + col] : sum;
}

/* Rows are outputs: a thread's elements from `first` on; its outputs begin at `row` of the tile. */
template <int N>
__device__ static void put_outputs(const float (&acc)[N], const ml_fp8_gemm &g,
                                   const place &t, int out, int first) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = t.m0 + token_of(first + i), at = t.n0 + out + (first + i) % 2;
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

/* Rows are tokens: of 16 outputs, a panel, a thread has four. */
template <class TILE>
__device__ static void put_tokens(const float (&acc)[TILE::own], const ml_fp8_gemm &g,
                                  const place &t, int token) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = t.m0 + token + half * 8;
        bf16 *y = g.y + (int64_t)(t.p.first_row + row) * g.n;
        if (row >= t.p.rows)
            continue;
#pragma unroll
        for (int p = 0; p < TILE::panels; p++) {
            const float *even = acc + 8 * p + 2 * half, *odd = even + 4;
            int at = t.n0 + p * ML_LANES + (int)threadIdx.x % 4 * 4;
            float four[4] = { biased(g, t, even[0], at), biased(g, t, odd[0], at + 1),
                              biased(g, t, even[1], at + 2), biased(g, t, odd[1], at + 3) };
            if (at < g.n)
                ml_store(y + at, four);
        }
    }
}

/* GATED: a thread keeps its outputs of one of its two tokens, and gets the other weight's outputs of this token, as
 * pairs of bf16. */
template <class TILE>
__device__ static void
exchange(uint32_t (&own)[TILE::own / 4], uint32_t (&other)[TILE::own / 4],
         const float (&acc)[TILE::own], typename TILE::smem_type &smem, int team) {
    int thread = (int)threadIdx.x % ML_WARPGROUP;

    sync_teams<TILE>(); /* those of the tile before have been read */
#pragma unroll
    for (int i = 0; i < TILE::own / 4; i++) { /* of four adjacent outputs, pair i % 2 */
        const float *pair = acc + i / 2 * 8 + i % 2;
        uint32_t first = ml_pack2(pair[0], pair[4]), second = ml_pack2(pair[2], pair[6]);
        own[i] = team == 0 ? first : second;
        smem.given[team][i][thread] = team == 0 ? second : first;
    }
    sync_teams<TILE>();
#pragma unroll
    for (int i = 0; i < TILE::own / 4; i++)
        other[i] = smem.given[1 - team][i][thread];
}

/* SwiGLU of pairs of outputs, rounded to bf16. */
template <int N>
__device__ static void gate_pairs(float (&y)[2 * N], const uint32_t (&gate)[N],
                                  const uint32_t (&up)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float2 g = __bfloat1622float2(*(const __nv_bfloat162 *)&gate[i]);
        float2 u = __bfloat1622float2(*(const __nv_bfloat162 *)&up[i]);
        ml_gate a = ml_gate_of(g.x, u.x, ML_ACT_SILU, 0.0f);
        ml_gate b = ml_gate_of(g.y, u.y, ML_ACT_SILU, 0.0f);
        float2 two = __bfloat1622float2(__floats2bfloat162_rn(a.act * a.up, b.act * b.up));
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
    }
}

/* Codes of a group of a token; four adjacent lanes have it, and of 16 numbers four each. */
template <int N>
__device__ static void put_codes(const ml_fp8_out &to, int64_t row, int64_t col,
                                 const float (&y)[N], bool there) {
    int lane = (int)threadIdx.x % 4;
    float amax = 0.0f, scale, inverse;

#pragma unroll
    for (int i = 0; i < N; i++)
        amax = fmaxf(fabsf(y[i]), amax);
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    scale = ml_fp8_scale(amax);
    inverse = 1.0f / scale;
    if (!there)
        return;
    if (lane == 0)
        to.scale[col / GROUP * to.rows + row] = scale;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint32_t two[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            two[j] = __nv_cvt_float2_to_fp8x2(
                make_float2(y[i + 2 * j] * inverse, y[i + 2 * j + 1] * inverse),
                __NV_SATFINITE, __NV_E4M3);
        *(uint32_t *)(to.code + row * to.width + col + i * 4 + lane * 4) =
            two[0] | two[1] << 16;
    }
}

template <class TILE>
__device__ static void put_gated(const float (&acc)[TILE::own],
                                 typename TILE::smem_type &smem, const ml_fp8_gemm &g,
                                 const place &t, int team) {
    uint32_t own[TILE::own / 4], other[TILE::own / 4];
    float y[TILE::own / 2];
    int row = t.m0 + row_of<TILE>(team) + team * 8;

    exchange<TILE>(own, other, acc, smem, team);
    if (team == 0)
        gate_pairs(y, own, other);
    else
        gate_pairs(y, other, own);
    put_codes(g.gated, row, t.n0, y, row < g.rows);
}

/* A team's part of the tiles. */
template <class TILE>
__device__ static void compute(typename TILE::smem_type &smem, walk<TILE> w, int team) {
    ring<TILE> at;

    do {
        float acc[TILE::own] = {};
        if constexpr (TILE::split > 1)
            multiply_split<TILE>(acc, smem, w, team);
        else if constexpr (TILE::ahead)
            multiply_ahead<TILE>(acc, smem, w, team, at);
        else
            multiply<TILE>(acc, smem, w, team, at);
        if constexpr (TILE::gated)
            put_gated<TILE>(acc, smem, w.g, w.t, team);
        else if constexpr (TILE::by_token)
            put_tokens<TILE>(acc, w.g, w.t, row_of<TILE>(team));
        else
            put_outputs(acc, w.g, w.t, row_of<TILE>(TILE::split > 1 ? 0 : team),
                        TILE::split > 1 ? team * TILE::own : 0);
    } while (w.next());
}

template <class TILE>
__global__ void __launch_bounds__(TILE::threads, TILE::per_sm)
    fp8_kernel(const __grid_constant__ maps m, const ml_fp8_gemm g) {
    typename TILE::smem_type &smem = *(typename TILE::smem_type *)fp8_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);

    ml_grid_release();
    if (g.start)
        ml_grid_wait(); /* for the experts' rows */
    walk<TILE> w(g);
    if (w.t.p.index < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE::stages; i++) {
            ml_barrier_init(&smem.full[i], 1 + 32);
            ml_barrier_init(&smem.empty[i], (unsigned)(TILE::cluster * TILE::teams /
                                                       TILE::split * ML_WARPGROUP / 32));
        }
        ml_barrier_init_end();
    }
    if (TILE::cluster > 1)
        ml_cluster_sync();
    else
        __syncthreads();
    if (team == TILE::teams) {
        if constexpr (TILE::registers)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)COPY_REGISTERS));
        if (threadIdx.x % ML_WARPGROUP == 0)
            copy_codes<TILE>(smem, m, w);
        else if (threadIdx.x % ML_WARPGROUP / 32 == 1)
            copy_scales<TILE>(smem, w);
    } else {
        if constexpr (TILE::registers)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)TILE::registers));
        ml_grid_wait();
        compute<TILE>(smem, w, team);
    }
    if (TILE::cluster > 1) /* the other block may still use this one's memory */
        ml_cluster_sync();
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

template <class TILE> static maps make_maps(ml_cuda_stream *s, const ml_fp8_gemm &g) {
    int64_t width = ml_cuda_fp8_width(g.k), panels = ml_cuda_blocks(g.n, ML_LANES);
    const ml_tensor_box x =
        box_of(g.x.code, 0, width / 2, g.rows, width / 2, GROUP / 2, TILE::tokens);
    const ml_panel_box w = { g.w, g.k, g.ld,
                             panels * (g.n_expert ? g.n_expert : TILE::weights),
                             TILE::panels };
    maps m;

    ml_cuda_note(s, ml_tensor_map(&m.x, &x), "an FP8 product");
    ml_cuda_note(s, ml_tensor_map_panels(&m.w, &w), "an FP8 product");
    return m;
}

template <class TILE> static void launch(ml_cuda_stream *s, const ml_fp8_gemm &g) {
    static const int sms = count_sms();
    const int bytes = (int)sizeof(typename TILE::smem_type);
    const int most = TILE::per_sm * sms / TILE::cluster;
    auto kernel = fp8_kernel<TILE>;
    int tiles = count_tiles<TILE>(g);

    if (TILE::split == 1 && !g.start && tiles > most)
        tiles = most;
    ml_cuda_note(
        s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "an FP8 product");
    ml_cuda_launch_as(s, "an FP8 product", { s->early, TILE::cluster }, kernel,
                      dim3((unsigned)(tiles * TILE::cluster)), TILE::threads, (size_t)bytes,
                      make_maps<TILE>(s, g), g);
}

enum { ONE_WAVE = 132 * 64 }; /* outputs of the SMs of an H200, in tiles of 64 */

/* Up to 16 tokens, or outputs with a scale of their own. */
static void run_by_output(ml_cuda_stream *s, const ml_fp8_gemm &g, int64_t each) {
    if (each <= 8 && !g.start && g.n <= ONE_WAVE)
        launch<tile<8, 64, 4, 16>>(s,
                                   g); /* an SM has one block, which copies further ahead */
    else if (each <= 8)
        launch<tile<8, 64, 4, 8>>(s, g);
    else if (each <= 16)
        launch<tile<16, 64, 4, 12>>(s, g);
    else if (each <= 32)
        launch<tile<32, 64, 2, 12>>(s, g);
    else if (each <= 64)
        launch<tile<64, 64, 1, 12, false, true>>(s, g);
    else
        launch<tile<128, 64, 1, 8, false, true>>(s, g);
}

/* Tiles with tokens as rows, and the time of one with all SMs at work, in microseconds for 4,096 inputs on an
 * H200. */
static const struct token_tile {
    int tokens, outputs;
    float cost;
    void (*launch)(ml_cuda_stream *, const ml_fp8_gemm &);
} token_tiles[] = {
    { 64, 64, 5.0f, launch<tile<64, 64, 1, 12, true, true>> },
    { 64, 128, 8.5f, launch<tile<64, 128, 1, 8, true, true>> },
    { 128, 96, 11.5f, launch<tile<128, 96, 1, 7, true, true>> },
    { 128, 128, 13.5f, launch<tile<128, 128, 1, 6, true, true>> },
    { 128, 192, 22.0f, launch<tile<128, 192, 1, 5, true>> },
};

/* SMs take turns of tiles: the tile with the least time for all of them. */
static void run_by_token(ml_cuda_stream *s, const ml_fp8_gemm &g, int64_t each) {
    static const int sms = count_sms();
    const token_tile *best = NULL;
    float least = 0.0f;

    for (const token_tile &t : token_tiles) {
        int64_t tiles = (int64_t)ml_cuda_blocks(each, t.tokens) *
                        ml_cuda_blocks(g.n, t.outputs) * (g.start ? g.n_expert : 1);
        float cost = (float)ml_cuda_blocks(tiles, sms) * t.cost;
        if (!best || cost < least) {
            best = &t;
            least = cost;
        }
    }
    best->launch(s, g);
}

/* All tiles give the same bits.  Few tokens leave time for exchanging sums. */
void ml_fp8_gemm_run(ml_cuda_stream *s, const ml_fp8_gemm *g) {
    int64_t each = g->start ? g->rows / g->n_expert : g->rows;

    if (g->rows == 0 || g->n == 0)
        return;
    if (g->gated.code)
        launch<tile<64, 128, 1, 5, true, true, true>>(s, *g);
    else if (each <= 16 || !g->blocks)
        run_by_output(s, *g, each);
    else
        run_by_token(s, *g, each);
}
