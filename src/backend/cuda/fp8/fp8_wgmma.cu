/* fp8_wgmma.cu - the product of FP8 codes on Hopper's tensor cores (fp8.cuh).
 *
 * Weights are the 64-row operand of wgmma, tokens are its columns; both come from shared memory.  Tensor
 * copies bring 16 outputs as two matrices of 8 rows: row r of a warp's m16 tile is output 2 r, row r + 8 is
 * output 2 r + 1, so that a thread's two rows are neighbours in memory.
 *
 * A stage of shared memory has one group, 128 inputs, of a block's outputs and tokens.  One thread starts the
 * copies of codes, and a warp those of the inputs' scales: the loops of both are short, because a warp alone takes
 * several cycles for each of its instructions, and a stage has no more than 256 to 512.  The teams (warpgroups) of a block divide its outputs (OUT), its tokens (COLS)
 * or the groups (SPLIT): the partial sums of groups do not depend on each other, so that with few tokens teams
 * take groups in turn, then exchange the sums, and each continues the chains of some outputs.
 *
 * The L2 cache delivers each byte to all blocks of a cluster that need it: PEERS_X blocks with other outputs
 * share the tokens, PEERS_W blocks with other tokens share the weights, and each copies a part of what they
 * share for all of them. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    GROUP = 128,
    STEPS = GROUP / 32,            /* wgmma steps of a group */
    TEAM_PANELS = 64 / ML_LANES,   /* 16 outputs are a panel: one for each warp */
    PANEL_BYTES = GROUP * ML_LANES /* codes of a group of a panel */
};

template <int TOKENS, int OUT, int COLS, int SPLIT, int STAGES, int PEERS_X = 1,
          int PEERS_W = 1, int AHEAD = 0>
struct tile {
    static const int ahead =
        AHEAD; /* groups that tensor cores compute while one is added */
    static const int teams = OUT * COLS * SPLIT, threads = (teams + 1) * ML_WARPGROUP;
    static const int tokens = TOKENS, split = SPLIT, stages = STAGES;
    static const int panels = OUT * TEAM_PANELS, outputs = OUT * 64;
    static const int columns = TOKENS / COLS; /* of a team */
    static const int sums = columns / 2;      /* partial sums of a thread */
    static const int own = sums / SPLIT;      /* of which it continues the chains */
    static const int cols = COLS;
    static const int most_registers = SPLIT > 1 || teams == 1 ? 0 : teams == 2 ? 232 : 152;
    static const int per_sm = TOKENS == 8 && STAGES == 8 ? 2 : 1;
    static const int peers_x = PEERS_X, peers_w = PEERS_W, peers = PEERS_X * PEERS_W;
    static const int writers =
        PEERS_X + PEERS_W - 1; /* blocks that fill a block's stages */

    struct smem_type {
        struct {
            unsigned char x[TOKENS * GROUP], w[panels * PANEL_BYTES];
        } stage[STAGES];
        struct alignas(128) { /* teams still read them when the stage is released */
            float x[TOKENS];
        } scale[2 * STAGES];
        float sum[SPLIT > 1 ? 2 * SPLIT *sums : 1][SPLIT > 1 ? ML_WARPGROUP : 1];
        ml_barrier full[STAGES], empty[STAGES];
    };
    static_assert(SPLIT == 1 || OUT * COLS == 1, "teams share outputs or have their own");
    static_assert(STAGES >= 2 * SPLIT && STAGES % SPLIT == 0,
                  "scales are kept for two rounds");
    static_assert(TOKENS * GROUP % 1024 == 0 && TOKENS / PEERS_X % 8 == 0 &&
                      panels % PEERS_W == 0,
                  "whole rows of the swizzle");
};

extern __shared__ __align__(1024) unsigned char fp8_bytes[];

/* ---- instructions ---- */

#define SUMS_8 "{%0, %1, %2, %3}, "
#define SUMS_16 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
#define SUMS_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
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
    else
        WGMMA_FP8("128", ML_WGMMA_SUMS_128, ML_WGMMA_ROWS_128, "64", "65", "66");
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

/* ---- clusters ---- */

template <class TILE> struct rank_of {
    int x, w; /* among the blocks that share tokens, and weights */

    __device__ rank_of(void) {
        int rank = TILE::peers > 1 ? (int)(blockIdx.x % TILE::peers) : 0;
        x = rank % TILE::peers_x;
        w = rank / TILE::peers_x;
    }
};

/* Of all threads of the blocks of a cluster. */
template <class TILE> __device__ static void sync_cluster(void) {
    if constexpr (TILE::peers > 1)
        ml_cluster_sync();
    else
        __syncthreads();
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

/* The tiles of a cluster's blocks are one tile here. */
template <class TILE> __host__ __device__ static int count_tiles(const ml_fp8_gemm &g) {
    const int outputs = TILE::outputs * TILE::peers_x;

    return count_strips(g, TILE::tokens * TILE::peers_w) * ((g.n + outputs - 1) / outputs);
}

/* All threads call it where there are experts. */
template <class TILE> __device__ static place find_place(const ml_fp8_gemm &g, int tile) {
    const int tokens = TILE::tokens * TILE::peers_w,
              outputs = TILE::outputs * TILE::peers_x;
    int panels = (g.n + ML_LANES - 1) / ML_LANES, strips = count_strips(g, tokens);
    int across = (g.n + outputs - 1) / outputs;
    int first = tile / (MOST_STRIPS * across) * MOST_STRIPS;
    int some = strips - first < MOST_STRIPS ? strips - first : MOST_STRIPS;
    int in = tile - first * across, strip = first + in % some;
    const rank_of<TILE> rank;
    place t;

    if (g.start)
        t.p = ml_find_piece(g.start, g.n_expert, 1, tokens, strip);
    else
        t.p = { 0, strip, 0, g.rows };
    t.m0 = t.p.index * tokens + rank.w * TILE::tokens;
    t.n0 = in / some * outputs + rank.x * TILE::outputs;
    t.panel0 = t.p.owner * panels + t.n0 / ML_LANES;
    return t;
}

/* A block's tiles one after the other. */
template <class TILE> struct walk {
    const ml_fp8_gemm &g;
    place t;
    int tile, tiles, groups;

    __device__ explicit walk(const ml_fp8_gemm &gemm)
        : g(gemm), t(find_place<TILE>(gemm, (int)blockIdx.x / TILE::peers)),
          tile((int)blockIdx.x / TILE::peers), tiles(count_tiles<TILE>(gemm)),
          groups((gemm.k + GROUP - 1) / GROUP) {}

    __device__ bool next(void) {
        tile += (int)gridDim.x / TILE::peers;
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

/* What one thread copies: the codes of a tile's groups. */
template <class TILE> struct code_copies {
    typename TILE::smem_type &smem;
    const maps &m;
    unsigned x_blocks,
        w_blocks;       /* of the cluster, that get what this one copies; 0: itself */
    int x_part, w_part; /* first row, and panel, of what it copies */
    int row, panel;     /* of the tile */

    __device__ code_copies(typename TILE::smem_type &to, const maps &from)
        : smem(to), m(from), x_blocks(0), w_blocks(0) {
        const rank_of<TILE> rank;
        x_part = rank.x * (TILE::tokens / TILE::peers_x);
        w_part = rank.w * (TILE::panels / TILE::peers_w);
        if (TILE::peers_x > 1)
            x_blocks = ((1u << TILE::peers_x) - 1) << rank.w * TILE::peers_x;
        for (int i = 0; TILE::peers_w > 1 && i < TILE::peers_w; i++)
            w_blocks |= 1u << (i * TILE::peers_x + rank.x);
    }

    __device__ void enter(const place &t) {
        row = t.p.first_row + t.m0 + x_part;
        panel = t.panel0 + w_part;
    }

    __device__ void weights(int slot, int group) {
        ml_barrier_expect(&smem.full[slot], sizeof smem.stage[0]);
        ml_tensor_copy_panels(smem.stage[slot].w + w_part * PANEL_BYTES, &m.w,
                              group * GROUP, panel, &smem.full[slot], w_blocks);
    }

    __device__ void inputs(int slot, int group) {
        ml_tensor_copy_to(smem.stage[slot].x + x_part * GROUP, &m.x, group * (GROUP / 2),
                          row, 0, &smem.full[slot], x_blocks);
    }
};

/* One thread calls it.  The first weights are copied before the kernel in front has ended. */
template <class TILE>
__device__ static void copy_codes(typename TILE::smem_type &smem, const maps &m,
                                  walk<TILE> w) {
    code_copies<TILE> copy(smem, m);
    int ahead = w.groups < TILE::stages ? w.groups : TILE::stages, first = ahead;
    bool again = ahead == TILE::stages; /* stages have been used before */
    ring<TILE> at;

    copy.enter(w.t);
    for (int i = 0; i < ahead; i++)
        copy.weights(i, i);
    ml_grid_wait();
    for (int i = 0; i < ahead; i++)
        copy.inputs(i, i);
    at.step(ahead);
    do {
        copy.enter(w.t);
        for (int i = first; i < w.groups; i++, at.step()) {
            if (again)
                ml_barrier_wait(&smem.empty[at.slot], at.turn ^ 1);
            copy.weights(at.slot, i);
            copy.inputs(at.slot, i);
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

/* By each warp that has read a stage: the blocks that fill it may do so again. */
template <class TILE> __device__ static void release(ml_barrier *empty) {
    int lane = (int)threadIdx.x % 32;
    const rank_of<TILE> rank;

    __syncwarp();
    if constexpr (TILE::peers == 1) {
        if (lane == 0)
            ml_barrier_arrive(empty);
    } else if (
        lane <
        TILE::writers) { /* first those with its tokens, then the others with its weights */
        int other = lane - TILE::peers_x;
        int block = lane < TILE::peers_x
                        ? rank.w * TILE::peers_x + lane
                        : (other + (other >= rank.w)) * TILE::peers_x + rank.x;
        ml_barrier_arrive_at(empty, block);
    }
}

/* A team's part of a tile. */
struct team_part {
    int panel, column; /* of the warp; of the team */
};

/* Starts the sums of a group, when its stage has arrived. */
template <class TILE>
__device__ static void start_group(float (&sum)[TILE::columns / 8][4],
                                   typename TILE::smem_type &smem, team_part part,
                                   const ring<TILE> &at) {
    int team_panel = part.panel / TEAM_PANELS * TEAM_PANELS;
    const int stage = (int)sizeof smem.stage[0] >> 4;
    uint32_t a = ml_panel((const bf16 *)(smem.stage[0].w + team_panel * PANEL_BYTES)) +
                 (uint32_t)(at.slot * stage);
    uint32_t b = ml_panel((const bf16 *)(smem.stage[0].x + part.column * GROUP)) +
                 (uint32_t)(at.slot * stage);

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
    release<TILE>(&smem.empty[at.slot]);
}

/* Element e of a thread's sums: of token 8 (e / 4) + 2 (lane % 4) + e / 2 % 2, output e % 2. */
__device__ static int token_of(int e) {
    return e / 4 * 8 + (int)threadIdx.x % 4 * 2 + e / 2 % 2;
}

template <int N> __device__ static float &element(float (&sum)[N][4], int e) {
    return sum[e / 4][e % 2 * 2 + e / 2 % 2];
}

/* The scales of a thread's two outputs, of four groups at a time: those of the next four are loaded while these
 * are used. */
struct weight_scales {
    const float4 *row[2];
    float4 now[2], next[2];

    __device__ weight_scales(const ml_fp8_gemm &g, const place &t, int panel) {
        int panels = (g.n + ML_LANES - 1) / ML_LANES, there = t.n0 / ML_LANES + panel;
        int64_t at = (int64_t)t.panel0 + (there < panels ? panel : 0);
        const unsigned char *first =
            g.w + (at * ML_LANES + threadIdx.x % 32 / 4 * 2) * g.ld + g.scales;

        row[0] = (const float4 *)first;
        row[1] = (const float4 *)(first + g.ld);
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

template <class TILE>
__device__ static void add_group(float (&acc)[TILE::own],
                                 const float (&sum)[TILE::columns / 8][4],
                                 typename TILE::smem_type &smem, team_part part,
                                 const ring<TILE> &at, float2 weight) {
    const float *scale = smem.scale[at.scale()].x + part.column;

#pragma unroll
    for (int j = 0; j < TILE::columns / 8; j++) {
        float2 s = *(const float2 *)(scale + j * 8 + threadIdx.x % 4 * 2);
        acc[4 * j] = fmaf(sum[j][0], s.x * weight.x, acc[4 * j]);
        acc[4 * j + 1] = fmaf(sum[j][2], s.x * weight.y, acc[4 * j + 1]);
        acc[4 * j + 2] = fmaf(sum[j][1], s.y * weight.x, acc[4 * j + 2]);
        acc[4 * j + 3] = fmaf(sum[j][3], s.y * weight.y, acc[4 * j + 3]);
    }
}

/* One team has all groups. */
template <class TILE>
__device__ static void multiply(float (&acc)[TILE::own], typename TILE::smem_type &smem,
                                const walk<TILE> &w, team_part part, ring<TILE> &at) {
    weight_scales weight(w.g, w.t, part.panel);
    float sum[TILE::columns / 8][4];

    for (int first = 0; first < w.groups; first += 4) {
        weight.step(first / 4, w.groups);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i >= w.groups)
                break;
            start_group<TILE>(sum, smem, part, at);
            end_group<TILE, 0>(sum, smem, at);
            add_group<TILE>(acc, sum, smem, part, at, weight.at(i));
            at.step();
        }
    }
}

/* The same; tensor cores compute a group while the one before it is added.  ptxas serializes wgmma where sums are
 * read while those of a group that was started in an earlier turn of the loop are pending: so four groups are a
 * turn. */
template <class TILE>
__device__ static void multiply_ahead(float (&acc)[TILE::own],
                                      typename TILE::smem_type &smem, const walk<TILE> &w,
                                      team_part part, ring<TILE> &at) {
    weight_scales weight(w.g, w.t, part.panel);
    float sum[2][TILE::columns / 8][4];
    int first = 0;

    for (; first + 4 <= w.groups; first += 4) {
        weight.step(first / 4, w.groups);
        start_group<TILE>(sum[0], smem, part, at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ring<TILE> now = at;
            at.step();
            if (i < 3) {
                start_group<TILE>(sum[(i + 1) % 2], smem, part, at);
                end_group<TILE, 1>(sum[i % 2], smem, now);
            } else {
                end_group<TILE, 0>(sum[i % 2], smem, now);
            }
            add_group<TILE>(acc, sum[i % 2], smem, part, now, weight.at(i));
        }
    }
    if (first < w.groups)
        weight.step(first / 4, w.groups);
    for (int i = first; i < w.groups; i++, at.step()) {
        start_group<TILE>(sum[0], smem, part, at);
        end_group<TILE, 0>(sum[0], smem, at);
        add_group<TILE>(acc, sum[0], smem, part, at, weight.at(i - first));
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
                                      team_part part, int team) {
    const int split = TILE::split;
    int thread = (int)threadIdx.x % ML_WARPGROUP;
    weight_scales weight(w.g, w.t, part.panel);
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
            start_group<TILE>(sum, smem, part, at);
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

/* A thread's elements from `first` on. */
template <int N>
__device__ static void put(const float (&acc)[N], const ml_fp8_gemm &g, const place &t,
                           team_part part, int first) {
    int col = t.n0 + part.panel * ML_LANES + (int)threadIdx.x % 32 / 4 * 2;

#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = t.m0 + part.column + token_of(first + i), at = col + (first + i) % 2;
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

template <class TILE>
__global__ void __launch_bounds__(TILE::threads, TILE::per_sm)
    fp8_kernel(const __grid_constant__ maps m, const ml_fp8_gemm g) {
    typename TILE::smem_type &smem = *(typename TILE::smem_type *)fp8_bytes;
    int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / ML_WARPGROUP, 0);
    int out = TILE::split > 1 ? 0 : team / TILE::cols;
    team_part part = { out * TEAM_PANELS + (int)threadIdx.x / 32 % TEAM_PANELS,
                       TILE::split > 1 ? 0 : team % TILE::cols * TILE::columns };

    ml_grid_release();
    if (g.start)
        ml_grid_wait(); /* for the experts' rows */
    walk<TILE> w(g);
    if (w.t.p.index < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE::stages; i++) {
            ml_barrier_init(&smem.full[i], 1 + 32);
            ml_barrier_init(&smem.empty[i], (unsigned)(TILE::teams / TILE::split *
                                                       ML_WARPGROUP / 32 * TILE::writers));
        }
        ml_barrier_init_end();
    }
    sync_cluster<TILE>();
    if (team == TILE::teams) {
        if constexpr (TILE::most_registers)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x % ML_WARPGROUP == 0)
            copy_codes<TILE>(smem, m, w);
        else if (threadIdx.x % ML_WARPGROUP / 32 == 1)
            copy_scales<TILE>(smem, w);
        __syncwarp();
    } else {
        if constexpr (TILE::most_registers)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TILE::most_registers));
        ring<TILE> at;
        ml_grid_wait();
        do {
            float acc[TILE::own] = {};
            if constexpr (TILE::split == 1 && TILE::ahead)
                multiply_ahead<TILE>(acc, smem, w, part, at);
            else if constexpr (TILE::split == 1)
                multiply<TILE>(acc, smem, w, part, at);
            else
                multiply_split<TILE>(acc, smem, w, part, team);
            put(acc, g, w.t, part, TILE::split > 1 ? team * TILE::own : 0);
        } while (w.next());
    }
    if constexpr (TILE::peers > 1)
        sync_cluster<TILE>(); /* others still copy to, and arrive at, this block's memory */
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

static maps make_maps(ml_cuda_stream *s, const ml_fp8_gemm &g, int box_tokens,
                      int box_panels) {
    int64_t width = ml_cuda_fp8_width(g.k), panels = ml_cuda_blocks(g.n, ML_LANES);
    const ml_tensor_box x =
        box_of(g.x.code, 0, width / 2, g.rows, width / 2, GROUP / 2, box_tokens);
    const ml_panel_box w = { g.w, g.k, g.ld, panels * (g.n_expert ? g.n_expert : 1),
                             box_panels };
    maps m;

    ml_cuda_note(s, ml_tensor_map(&m.x, &x), "an FP8 product");
    ml_cuda_note(s, ml_tensor_map_panels(&m.w, &w), "an FP8 product");
    return m;
}

template <class TILE> static void launch(ml_cuda_stream *s, const ml_fp8_gemm &g) {
    static const int sms = count_sms();
    const int most = TILE::per_sm * sms / TILE::peers;
    const int bytes = (int)sizeof(typename TILE::smem_type);
    auto kernel = fp8_kernel<TILE>;
    int tiles = count_tiles<TILE>(g);

    if (TILE::split == 1 && !g.start && tiles > most)
        tiles = most;
    ml_cuda_note(
        s, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "an FP8 product");
    ml_cuda_launch_clusters(
        s, "an FP8 product", s->early, TILE::peers, kernel,
        dim3((unsigned)(tiles * TILE::peers)), TILE::threads, (size_t)bytes,
        make_maps(s, g, TILE::tokens / TILE::peers_x, TILE::panels / TILE::peers_w), g);
}

enum { ONE_WAVE = 132 * 64 }; /* outputs of the SMs of an H200, in tiles of 64 */

/* Chooses the tile.  Few tokens leave time for exchanging sums; with many, the bytes of rows and weights
 * that the L2 cache delivers bound the time, and the widest tile reads least. */
void ml_fp8_gemm_run(ml_cuda_stream *s, const ml_fp8_gemm *g) {
    int64_t each = g->start ? g->rows / g->n_expert : g->rows;

    if (g->rows == 0 || g->n == 0)
        return;
    if (each <= 8 && !g->start && g->n <= ONE_WAVE)
        launch<tile<8, 1, 1, 4, 16>>(
            s, *g); /* an SM has one block, which copies further ahead */
    else if (each <= 8)
        launch<tile<8, 1, 1, 4, 8>>(s, *g);
    else if (each <= 16)
        launch<tile<16, 1, 1, 4, 12>>(s, *g);
    else if (each <= 32)
        launch<tile<32, 1, 1, 2, 12>>(s, *g);
    else if (each <= 64)
        launch<tile<64, 1, 1, 2, 8>>(s, *g);
    else
        launch<tile<128, 2, 1, 1, 6>>(s, *g);
}
