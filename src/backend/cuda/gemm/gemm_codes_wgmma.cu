/* gemm_codes_wgmma.cu - products of 33 to 512 rows with quantized weights, which are read as codes, on Hopper.
 *
 * Weights are the 64-row operand of wgmma, dequantized in registers; tokens are its columns, in shared
 * memory.  A warp has the 16 outputs of one panel: row r of its m16 tile is output 2 r, row r + 8 is output
 * 2 r + 1, so that a thread's two rows are neighbours in memory.  An output is one chain of k16 steps over
 * ascending k, which has the bits of a chain of mma.
 *
 * A stage of shared memory has DEPTH inputs of a block's outputs and tokens.  Warps of their own
 * copy the stages ahead; TEAMS teams (warpgroups) multiply 64 outputs each, and dequantize a chunk of
 * inputs while the products of the one before run.  The blocks of a cluster have the same tokens and
 * neighbouring outputs: each copies a share of the tokens to all of them, because the L2 cache would not
 * deliver them to every block in time.  Blocks take one tile after the other. */
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_tiles.cuh"
#include "backend/cuda/wgmma.cuh"

enum {
    DEPTH = 128, /* inputs of a stage */
    CHUNKS = DEPTH / CHUNK,
    TEAM_PANELS = 64 / TILE, /* one for each warp */
    TEAM_WARPS = ML_WARPGROUP / 32,
    MOST_STAGES = 8
};

/* ---- operands from codes ----
 *
 * codes: bytes of DEPTH inputs of a panel, scales: of their scales.  fetch: what the A fragments of a chunk
 * are made of, from input `at` of the stage on; fragment: that of its i-th 16 inputs. */

template <int GROUP> struct int4_operand {
    typedef int4_weights<GROUP> kind;
    static const int codes = DEPTH * TILE / 2, scales = DEPTH / GROUP * TILE * 2;
    struct fetched {
        uint2 word[2 * STEPS]; /* eight inputs of both outputs */
        uint32_t scale[CHUNK / kind::PER];
    };

    __device__ static void fetch(fetched &r, uint32_t code, uint32_t scale, int at) {
        int output = (int)threadIdx.x % 32 / 4 * 2;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++)
            r.word[i] = load_64(code + (uint32_t)((at / 8 + i) * TILE + output) * 4);
#pragma unroll
        for (int i = 0; i < CHUNK / kind::PER; i++)
            r.scale[i] = load_32(scale + (uint32_t)((at / GROUP + i) * TILE + output) * 2);
    }

    /* Inputs 2 q and 2 q + 1 of eight are byte q of their word. */
    __device__ static uint32_t of_word(uint32_t word, bf16 scale) {
        unsigned byte = 0x0400 + threadIdx.x % 4 * 0x0101;
        return kind::pair(__byte_perm(word, word >> 4, byte), __nv_bfloat162(scale, scale));
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
        __nv_bfloat162 s = *(const __nv_bfloat162 *)&r.scale[i * 16 / kind::PER];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            a[2 * j] = of_word(r.word[2 * i + j].x, s.x);
            a[2 * j + 1] = of_word(r.word[2 * i + j].y, s.y);
        }
    }
};

template <bool INTEGER> struct byte_operand {
    typedef byte_weights<INTEGER> kind;
    static const int codes = DEPTH * TILE, scales = DEPTH / 128 * TILE * 4;
    struct fetched {
        uint32_t code[2 * STEPS]; /* both outputs of an input, and of the next */
        uint2 scale;
    };

    __device__ static void fetch(fetched &r, uint32_t code, uint32_t scale, int at) {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) {
            uint32_t from = code + (uint32_t)(at + i * 32 + lane) * TILE;
            asm volatile(
                "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                : "=r"(r.code[4 * i]), "=r"(r.code[4 * i + 1]), "=r"(r.code[4 * i + 2]),
                  "=r"(r.code[4 * i + 3])
                : "r"(from));
        }
        r.scale = load_64(scale + (uint32_t)(lane / 4 * 8));
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t codes = __byte_perm(r.code[2 * i + j], 0, 0x3120);
            if (INTEGER)
                codes ^= 0x80808080;
            a[2 * j] = kind::template pair<false>(codes, r.scale.x);
            a[2 * j + 1] = kind::template pair<true>(codes, r.scale.y);
        }
    }
};

/* The operand of a kind of weights. */
template <class W> struct operand_of;
template <int GROUP> struct operand_of<int4_weights<GROUP>> {
    typedef int4_operand<GROUP> type;
};
template <bool INTEGER> struct operand_of<byte_weights<INTEGER>> {
    typedef byte_operand<INTEGER> type;
};

/* ---- tiles ---- */

template <class A, int TOKENS, int TEAMS> struct tile {
    /* Of teams, then a warp that copies tokens, and one for each team that copies codes. */
    static const int threads = TEAMS * ML_WARPGROUP + 32 + TEAMS * 32;
    static const int outputs = TEAMS * 64;

    struct alignas(1024) inputs {
        bf16 x[CHUNKS][TOKENS * CHUNK]; /* panels of wgmma.cuh with TOKENS rows */
        unsigned char code[TEAMS][TEAM_PANELS * A::codes];
        unsigned char scale[TEAMS][TEAM_PANELS * A::scales];
    };
    struct exchange {
        /* Of gated products: two adjacent outputs of a token, half the tokens at a time. */
        uint32_t pair[TEAMS][TEAMS == 2 ? TOKENS / 8 : 1][ML_WARPGROUP];
        ml_barrier full[MOST_STAGES], empty[MOST_STAGES];
    };
    static const int fitting = (int)((MOST_SMEM - sizeof(exchange)) / sizeof(inputs));
    static const int stages = fitting < MOST_STAGES ? fitting : MOST_STAGES;

    struct smem {
        inputs stage[stages];
        exchange x;
    };
};

extern __shared__ __align__(1024) unsigned char wide_bytes[];

struct wide_call {
    ml_skinny_gemm f;
    int strips;           /* of tokens, a tile each */
    int tiles;            /* of a cluster's outputs and a strip */
    int cluster;          /* blocks of one */
    const int32_t *start; /* of the rows of experts; NULL: a LINEAR */
    int n_expert;
    CUtensorMap x;
};

/* Tokens `row` to end - 1 at most, which have the weights of expert `owner`. */
struct strip {
    int owner, row, end;
};

/* Of a team: outputs from `col` of part `part` on. */
struct team_place {
    int part, col;
};

/* The strip of tile `at`; `expert`: that of the only tile of a block with experts.  Blocks that run at the
 * same time have the same weights: strips are numbered first. */
template <int TOKENS>
__device__ static strip strip_of(const wide_call &c, const strip &expert, int at) {
    if (c.start)
        return expert;
    return { 0, at % c.strips * TOKENS, c.f.m };
}

/* All threads call it; owner -1: no rows. */
template <int TOKENS> __device__ static strip find_expert(const wide_call &c) {
    ml_piece p = ml_find_piece(c.start, c.n_expert, 1, TOKENS,
                               (int)blockIdx.x / c.cluster % c.strips);
    if (p.index < 0)
        return { -1, 0, 0 };
    return { p.owner, p.first_row + p.index * TOKENS, p.first_row + p.rows };
}

template <int TEAMS>
__device__ static team_place find_place(const wide_call &c, int at, int team) {
    const int outputs = TEAMS * 64;
    const ml_skinny_gemm &f = c.f;
    int item = at / c.strips * c.cluster + (int)blockIdx.x % c.cluster;
    team_place p = {};

    if (f.gated)
        return { team, item * 64 };
    while (p.part < f.n_part - 1 && item * outputs >= f.part[p.part].n)
        item -= (f.part[p.part++].n + outputs - 1) / outputs;
    p.col = item * outputs + team * 64;
    return p;
}

/* ---- copies ---- */

/* Where a warp copies from: the codes and scales of a team's panels, 16 bytes for each lane.  After the last
 * panel of a weight it is copied again: nobody stores those outputs. */
template <class A> struct source {
    enum { SCALE_PACKS = A::scales / 16 }; /* of a panel */
    const unsigned char *code[TEAM_PANELS], *scale;

    __device__ source(const wide_call &c, const strip &s, const team_place &p) {
        const ml_skinny_gemm_part &of = c.f.part[p.part];
        int lane = (int)threadIdx.x % 32, count = of.n / TILE, first = p.col / TILE;
        auto panel = [&](int i) {
            int at = first + i < count ? first + i : count - 1;
            return (const unsigned char *)of.w +
                   ((int64_t)s.owner * count + at) * (int64_t)c.f.panel;
        };
#pragma unroll
        for (int i = 0; i < TEAM_PANELS; i++)
            code[i] = panel(i) + c.f.scales + lane * 16;
        scale = panel(lane / SCALE_PACKS % TEAM_PANELS) + lane % SCALE_PACKS * 16;
    }

    /* Starts the copies of the next DEPTH inputs. */
    __device__ void copy(unsigned char *codes, unsigned char *scales) {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TEAM_PANELS; i++) {
#pragma unroll
            for (int j = 0; j < A::codes; j += 32 * 16)
                ml_copy_async(codes + i * A::codes + j + lane * 16, code[i] + j, true);
            code[i] += A::codes;
        }
        if (lane < TEAM_PANELS * SCALE_PACKS)
            ml_copy_async(scales + lane * 16, scale, true);
        scale += A::scales;
    }
};

/* A position in the ring of stages that is written. */
template <int STAGES> struct writer {
    cursor at;
    bool filled; /* all stages once */

    __device__ void wait(ml_barrier *empty) {
        if (filled)
            ml_barrier_wait(empty + at.at, at.parity ^ 1);
    }

    __device__ void advance() {
        filled |= at.at + 1 == STAGES;
        at.advance(1, STAGES);
    }
};

/* A warp that copies a team's codes by cp.async: tensor copies, and a warp that copies all, take longer
 * than the products.  It need not wait for the kernel in front, which does not write weights. */
template <class A, int TOKENS, int TEAMS, class SMEM>
__device__ static void copy_codes(SMEM &smem, const wide_call &c, const strip &expert,
                                  int team) {
    const int clusters = (int)gridDim.x / c.cluster;
    writer<tile<A, TOKENS, TEAMS>::stages> w = {};

    for (int at = (int)blockIdx.x / c.cluster; at < c.tiles; at += clusters) {
        source<A> from(c, strip_of<TOKENS>(c, expert, at), find_place<TEAMS>(c, at, team));
        for (int k = 0; k < c.f.k; k += DEPTH) {
            w.wait(smem.x.empty);
            from.copy(smem.stage[w.at.at].code[team], smem.stage[w.at.at].scale[team]);
            ml_barrier_arrive_copied(smem.x.full + w.at.at);
            w.advance();
        }
    }
    ml_copy_commit();
    ml_copy_wait<0>();
}

/* A thread that copies this block's share of the tokens to all blocks of the cluster. */
template <class A, int TOKENS, int TEAMS, class SMEM>
__device__ static void copy_tokens(SMEM &smem, const wide_call &c, const strip &expert) {
    const int clusters = (int)gridDim.x / c.cluster, share = TOKENS / c.cluster,
              first = (int)blockIdx.x % c.cluster * share;
    const uint16_t all = (uint16_t)((1u << c.cluster) - 1);
    writer<tile<A, TOKENS, TEAMS>::stages> w = {};

    ml_grid_wait();
    for (int at = (int)blockIdx.x / c.cluster; at < c.tiles; at += clusters) {
        const strip s = strip_of<TOKENS>(c, expert, at);
        for (int k = 0; k < c.f.k; k += DEPTH) {
            auto &to = smem.stage[w.at.at].x;
            ml_barrier *full = smem.x.full + w.at.at;
            w.wait(smem.x.empty);
            ml_barrier_expect(full, sizeof to);
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                ml_tensor_multicast(to[i] + first * CHUNK, &c.x, k + i * CHUNK,
                                    s.row + first, 0, full, all);
            w.advance();
        }
    }
}

/* ---- products ---- */

#define SUMS_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define ROWS_32(c)                                                                         \
    ML_WGMMA_ROW(c[0]), ML_WGMMA_ROW(c[1]), ML_WGMMA_ROW(c[2]), ML_WGMMA_ROW(c[3])

/* c += a b'; a 64 x 16 in registers, b N x 16 in shared memory.  A and B are the numbers of their asm
 * operands. */
#define WGMMA_CODES(N, SUMS, ROWS, A0, A1, A2, A3, B)                                      \
    asm volatile("{.reg .pred add; .reg .b64 b; setp.eq.b32 add, 0, 0;"                    \
                 "mov.b64 b, {%" B ", " ML_PANEL_HI "};"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 " SUMS "{%" A0   \
                 ", %" A1 ", %" A2 ", %" A3 "}, b, add, 1, 1, 0;}"                         \
                 : ROWS(c)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b))

template <int TOKENS>
__device__ static void multiply_16(float (&c)[TOKENS / 8][4], const uint32_t (&a)[4],
                                   uint32_t b) {
    if constexpr (TOKENS == 32)
        WGMMA_CODES("32", SUMS_32, ROWS_32, "16", "17", "18", "19", "20");
    else if constexpr (TOKENS == 64)
        WGMMA_CODES("64", ML_WGMMA_SUMS, ML_WGMMA_ROWS, "32", "33", "34", "35", "36");
    else
        WGMMA_CODES("128", ML_WGMMA_SUMS_128, ML_WGMMA_ROWS_128, "64", "65", "66", "67",
                    "68");
}

/* Starts the products of a chunk, as a group. */
template <int TOKENS>
__device__ static void multiply_chunk(float (&acc)[TOKENS / 8][4], uint32_t (&a)[STEPS][4],
                                      const bf16 *x) {
    const uint32_t b = ml_panel(x);

    ml_wgmma_fence(a);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_16<TOKENS>(acc, a[i], ml_panel_columns(b, i));
    ml_wgmma_commit();
}

/* Waits for all groups but the latest; then `a`, the operand of the one before, may be written. */
__device__ static void wait_for_previous(uint32_t (&a)[STEPS][4]) {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
}

template <int N> __device__ static void wait_for_all(float (&acc)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int j = 0; j < N; j++)
        asm volatile("" : ML_WGMMA_ROW(acc[j])::"memory");
}

template <class A>
__device__ static void make_operand(uint32_t (&a)[STEPS][4], const typename A::fetched &r) {
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        A::fragment(a[i], r, i);
}

/* What a warp has read of a stage is in registers: tells the copying threads of the cluster, which all write to it. */
__device__ static void release(ml_barrier *empty, int cluster) {
    __syncwarp();
    if ((int)threadIdx.x % 32 < cluster)
        ml_barrier_arrive_at(empty, (int)threadIdx.x % 32);
}

/* The sums of a tile; `read` is its first stage, and then the first of the next tile.  After the last chunk
 * this fetches the first of its stage again. */
template <class A, int TOKENS, int TEAMS, class SMEM>
__device__ static void multiply(float (&acc)[TOKENS / 8][4], SMEM &smem, cursor &read,
                                int steps, int team, int cluster) {
    const int warp = (int)threadIdx.x / 32 % TEAM_WARPS,
              stages = tile<A, TOKENS, TEAMS>::stages;
    cursor now = read, next;
    int before = -1;
    uint32_t a[2][STEPS][4];
    typename A::fetched r;

    auto fetch = [&](int stage, int at) {
        A::fetch(r, ml_smem(smem.stage[stage].code[team]) + (uint32_t)(warp * A::codes),
                 ml_smem(smem.stage[stage].scale[team]) + (uint32_t)(warp * A::scales), at);
    };
    ml_barrier_wait(&smem.x.full[now.at], now.parity);
    fetch(now.at, 0);
    make_operand<A>(a[0], r);
    for (int step = 0; step < steps; step++) {
        next = now;
        if (step + 1 < steps)
            next.advance(1, stages);
        fetch(now.at, CHUNK);
        multiply_chunk<TOKENS>(acc, a[0], smem.stage[now.at].x[0]);
        wait_for_previous(a[1]);
        if (before >= 0)
            release(&smem.x.empty[before], cluster);
        make_operand<A>(a[1], r);
        ml_barrier_wait(&smem.x.full[next.at], next.parity);
        fetch(next.at, 0);
        multiply_chunk<TOKENS>(acc, a[1], smem.stage[now.at].x[1]);
        wait_for_previous(a[0]);
        make_operand<A>(a[0], r);
        before = now.at;
        now = next;
    }
    wait_for_all(acc);
    release(&smem.x.empty[before], cluster);
    now.advance(1, stages);
    read = now;
}

/* ---- epilogue ---- */

/* Of a thread's outputs, the i-th two adjacent ones: those of token row_of(i) of the strip. */
template <int N>
__device__ static void finish_pair(float (&v)[2], const wide_call &c,
                                   const float (&acc)[N][4], const strip &s, int part,
                                   int i, int col) {
    const ml_skinny_gemm_part &to = c.f.part[part];
    ml_skinny_finish(v, acc[i / 2][i % 2], acc[i / 2][2 + i % 2], to,
                     (int64_t)(s.row + row_of(i)) * to.n + col, col);
}

template <int N>
__device__ static void put_sums(const wide_call &c, const float (&acc)[N][4],
                                const strip &s, int part, int col) {
    const ml_skinny_gemm &f = c.f;

#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        int row = s.row + row_of(i);
        int64_t at = (int64_t)row * f.part[part].n + col;
        float v[2], u[2];
        if (row >= s.end)
            continue;
        finish_pair(v, c, acc, s, part, i, col);
        if (f.addend) {
            ml_load(u, f.addend + at);
            ml_skinny_put_sum(f, v, u, at);
        }
    }
}

/* Of an expert.  The bias is added before the rounding, as in moe_mma.cu. */
template <int N>
__device__ static void put_expert(const wide_call &c, const float (&acc)[N][4],
                                  const strip &s, int col) {
    const ml_skinny_gemm_part &to = c.f.part[0];
    float bias[2] = {};

    if (to.bias)
        ml_load(bias, to.bias + (int64_t)s.owner * to.n + col);
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        int row = s.row + row_of(i);
        float v[2] = { acc[i / 2][i % 2] + bias[0], acc[i / 2][2 + i % 2] + bias[1] };
        if (row < s.end)
            ml_store(to.y + (int64_t)row * to.n + col, v);
    }
}

/* Of the threads of both teams. */
__device__ static void sync_teams() {
    asm volatile("bar.sync 1, %0;" ::"n"(2 * ML_WARPGROUP) : "memory");
}

/* The first team has the gate, the second the up projection.  They exchange their outputs in shared memory,
 * where a loop that is not unrolled can find them: the gate functions are long. */
template <int N>
__device__ static void put_gated(const wide_call &c, uint32_t (*pair)[N][ML_WARPGROUP],
                                 const float (&acc)[N][4], const strip &s, int part,
                                 int col) {
    const ml_skinny_gemm &f = c.f;
    int thread = (int)threadIdx.x % ML_WARPGROUP;

#pragma unroll
    for (int first = 0; first < 2 * N; first += N) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float v[2];
            if (s.row + row_of(first + i) >= s.end || col >= f.part[0].n)
                continue;
            finish_pair(v, c, acc, s, part, first + i, col);
            pair[part][i][thread] = ml_pack2(v[0], v[1]);
        }
        sync_teams();
#pragma unroll 1
        for (int i = part; i < N; i += 2) {
            int row = s.row + row_of(first + i);
            float v[2], u[2];
            if (row >= s.end || col >= f.part[0].n)
                continue;
            ml_load(v, (const bf16 *)&pair[0][i][thread]);
            ml_load(u, (const bf16 *)&pair[1][i][thread]);
            ml_skinny_put_gated(f, v, u, (int64_t)row * f.part[0].n + col);
        }
        sync_teams();
    }
}

/* ---- the kernel ---- */

template <class A, int TOKENS, int TEAMS, class SMEM>
__device__ static void multiply_tiles(SMEM &smem, const wide_call &c, const strip &expert,
                                      int team) {
    const int clusters = (int)gridDim.x / c.cluster;
    cursor read = {};

    for (int at = (int)blockIdx.x / c.cluster; at < c.tiles; at += clusters) {
        const strip s = strip_of<TOKENS>(c, expert, at);
        const team_place p = find_place<TEAMS>(c, at, team);
        int col = p.col + (int)threadIdx.x / 32 % TEAM_WARPS * TILE +
                  (int)threadIdx.x % 32 / 4 * 2;
        float acc[TOKENS / 8][4] = {};
        multiply<A, TOKENS, TEAMS>(acc, smem, read, c.f.k / DEPTH, team, c.cluster);
        if constexpr (TEAMS == 2)
            if (c.f.gated) {
                put_gated(c, smem.x.pair, acc, s, p.part, col);
                continue;
            }
        if (col >= c.f.part[p.part].n)
            continue;
        if (c.start)
            put_expert(c, acc, s, col);
        else
            put_sums(c, acc, s, p.part, col);
    }
}

/* The warps that copy.  They compute addresses at every stage: `held` keeps the compiler from reading the
 * special register for them each time. */
template <class A, int TOKENS, int TEAMS, class SMEM>
__device__ static void copy_stages(SMEM *held, const wide_call &c, const strip &expert,
                                   int warp) {
    asm volatile("" : "+l"(held));
    if (warp > 0)
        copy_codes<A, TOKENS, TEAMS>(*held, c, expert, warp - 1);
    else if (threadIdx.x % 32 == 0)
        copy_tokens<A, TOKENS, TEAMS>(*held, c, expert);
    __syncwarp();
}

template <class A, int TOKENS, int TEAMS>
__global__ void __launch_bounds__(tile<A, TOKENS, TEAMS>::threads)
    wide_kernel(const __grid_constant__ wide_call c) {
    typedef tile<A, TOKENS, TEAMS> tl;
    typename tl::smem &smem = *(typename tl::smem *)wide_bytes;
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    strip expert = {};

    if (c.start) {
        ml_grid_wait(); /* for the experts' rows */
        expert = find_expert<TOKENS>(c);
        if (expert.owner < 0)
            return;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < tl::stages; i++) {
            ml_barrier_init(&smem.x.full[i], 1 + TEAMS * 32); /* tokens; codes */
            ml_barrier_init(&smem.x.empty[i], (unsigned)(c.cluster * TEAMS * TEAM_WARPS));
        }
        ml_barrier_init_end();
    }
    ml_cluster_sync();
    if (warp >= TEAMS * TEAM_WARPS) {
        copy_stages<A, TOKENS, TEAMS>(&smem, c, expert, warp - TEAMS * TEAM_WARPS);
    } else {
        ml_grid_wait();
        ml_grid_release();
        multiply_tiles<A, TOKENS, TEAMS>(smem, c, expert, warp / TEAM_WARPS);
    }
    ml_cluster_sync(); /* the others of the cluster may still arrive at this block's barriers */
}

/* ---- configuration and launch ---- */

static ml_tensor_box box_of(const ml_skinny_gemm &f, int tokens) {
    ml_tensor_box b = {};

    b.at = f.x;
    b.cols = b.row_stride = f.k;
    b.rows = f.m;
    b.count = 1;
    b.stride = b.row_stride * b.rows;
    b.box_cols = CHUNK;
    b.box_rows = tokens;
    return b;
}

/* Blocks' worth of outputs. */
static int count_items(const ml_skinny_gemm *f, int outputs) {
    int n = 0;

    if (f->gated)
        return (int)ml_cuda_blocks(f->part[0].n, 64);
    for (int i = 0; i < f->n_part; i++)
        n += (int)ml_cuda_blocks(f->part[i].n, outputs);
    return n;
}

/* Sets the strips and tiles of c, and runs it. */
template <class A, int TOKENS, int TEAMS>
static void launch(ml_cuda_stream *s, wide_call &c, int cluster) {
    typedef tile<A, TOKENS, TEAMS> tl;
    auto kernel = wide_kernel<A, TOKENS, TEAMS>;
    const ml_tensor_box box = box_of(c.f, TOKENS / cluster);
    int clusters;

    c.cluster = cluster;
    c.strips = (int)ml_cuda_blocks(c.f.m, TOKENS) + c.n_expert;
    c.tiles = (int)ml_cuda_blocks(count_items(&c.f, tl::outputs), cluster) * c.strips;
    clusters = c.tiles; /* experts' tiles have a cluster each */
    if (!c.start && clusters > MULTIPROCESSORS / cluster)
        clusters = MULTIPROCESSORS / cluster;
    ml_cuda_note(s, ml_tensor_map(&c.x, &box), "products with codes");
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(typename tl::smem)),
                 "products with codes");
    ml_cuda_launch_as(s, "products with codes", { true, (unsigned)cluster }, kernel,
                      dim3((unsigned)(clusters * cluster)), tl::threads,
                      sizeof(typename tl::smem), c);
}

/* A shape of tiles, and the microseconds that 4,096 inputs of one take. */
struct shape {
    int tokens, teams, time;
};
static const shape shapes[] = { { 128, 2, 28 }, { 128, 1, 20 }, { 64, 2, 23 },
                                { 64, 1, 15 },  { 32, 2, 18 },  { 32, 1, 13 } };

/* Blocks that have the same tokens. */
static int cluster_for(const ml_skinny_gemm *f, int outputs) {
    return count_items(f, outputs) >= 2 ? 2 : 1;
}

/* The shape whose tiles take the least time, on as many SMs as an H200 has; experts have `each` rows. */
static shape choose(const wide_call &c, int each) {
    shape best = shapes[0];
    int least = 0;

    for (const shape &x : shapes) {
        int strips = (int)ml_cuda_blocks(each, x.tokens) * (c.start ? c.n_expert : 1);
        int tiles = count_items(&c.f, x.teams * 64) * strips;
        int time = (int)ml_cuda_blocks(tiles, MULTIPROCESSORS) * x.time;
        if ((c.f.gated && x.teams == 1) || (least && time >= least))
            continue;
        best = x;
        least = time;
    }
    return best;
}

template <class A> static void run(ml_cuda_stream *s, wide_call &c, int each) {
    const shape x = choose(c, each);
    const int cluster = cluster_for(&c.f, x.teams * 64);

    switch (x.tokens * x.teams) {
    case 256: launch<A, 128, 2>(s, c, cluster); break;
    case 128:
        x.teams == 1 ? launch<A, 128, 1>(s, c, cluster) : launch<A, 64, 2>(s, c, cluster);
        break;
    case 64:
        x.teams == 1 ? launch<A, 64, 1>(s, c, cluster) : launch<A, 32, 2>(s, c, cluster);
        break;
    default: launch<A, 32, 1>(s, c, cluster);
    }
}

bool ml_codes_wgmma_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f) {
    if (!s->wgmma || f->m < 1 || f->norm || f->k % DEPTH != 0)
        return false;
    for (int i = 0; i < f->n_part; i++)
        if (f->part[i].n % TILE != 0)
            return false;
    return true;
}

void ml_codes_wgmma_run(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    wide_call c = {};

    c.f = *f;
    WITH_CODES(f->weights, run<typename operand_of<W>::type>(s, c, f->m));
}

void ml_codes_wgmma_experts(ml_cuda_stream *s, const ml_skinny_gemm *f,
                            const int32_t *start, int n_expert) {
    wide_call c = {};

    c.f = *f;
    c.start = start;
    c.n_expert = n_expert;
    WITH_CODES(f->weights,
               run<typename operand_of<W>::type>(s, c, (f->m + n_expert - 1) / n_expert));
}
