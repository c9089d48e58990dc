/* gemm_tiles.cuh - tiles of weights in bf16 or in codes, for products of few rows.
 *
 * Weights are operand A of the mma: a tile is 16 outputs, and 8 rows of x are the 8 columns of operand B.
 * An output is one chain of mma steps over ascending k.  Copies bring the weights to a ring in shared
 * memory, from which A fragments are made; codes are dequantized on this way. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_TILES_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_TILES_CUH

#include <cuda_fp8.h>

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/gemm/gemm_skinny.cuh"

enum {
    TILE = ML_LANES, /* outputs: rows of A, a panel of codes */
    STEP = 256, /* of k per stage: a wait and a branch take as long as several mma steps */
    CHUNK = 64, /* of k whose fragments are in registers together */
    STEPS = CHUNK / 16,
    PAD = 16, /* numbers after a row in shared memory, for loads without bank conflicts */
    ML_ROW_SLOTS = 4,     /* of a ring of rows */
    MULTIPROCESSORS = 132 /* SMs of an H200: a hint for the shape of the grid */
};
static const size_t MOST_SMEM = 224 * 1024;

/* Of a warp: the first lane.  Reading the special register takes longer than an mma step, so that the
 * compiler must not do it again in a loop. */
__device__ static inline bool is_leader() {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane == 0;
}

/* ---- loads from shared memory ----
 *
 * The compiler moves a plain load to where its result is used, which would wait for each of them; these
 * stay where they are, before the mma steps that they are prefetched for. */

__device__ static inline uint16_t load_16(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ static inline uint32_t load_32(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ static inline uint2 load_64(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ static inline uint4 load_128(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* A warp starts copies of BYTES bytes. */
template <int BYTES>
__device__ static inline void copy_bytes(unsigned char *to, const unsigned char *from) {
    int at = (int)threadIdx.x % 32 * 16;
#pragma unroll
    for (int i = 0; i < BYTES; i += 32 * 16)
        if (BYTES - i >= 32 * 16 || at < BYTES - i)
            ml_copy_async(to + at + i, from + at + i, true);
}

/* ---- kinds of weights ----
 *
 * A stage is a step of `span` of k of a tile, `stage` bytes in shared memory.  copy: a warp starts its
 * copies; copy_bulk: a thread does; fetch: what A fragments of CHUNK of k are made of, from k `at` of the step on; fragment: that of
 * its i-th 16 of k.  Lane 4 g + q has outputs 2 g and 2 g + 1 (rows g and g + 8 of the tile) and inputs
 * 4 q to 4 q + 3 of each 16, in x, too: an mma step sums its 16 products exactly before it rounds, so that
 * their order has no effect. */

/* Codes in panels of 16 outputs (tensor/codes.h).  In a stage lie the codes of a step, then the scales of
 * its groups, as in the weight. */
template <int BITS, int GROUP, class SCALE, int SPAN> struct panel_weights {
    enum {
        CODES = SPAN * TILE * BITS / 8, /* bytes of a step */
        SCALES = SPAN / GROUP * TILE * (int)sizeof(SCALE)
    };
    enum { PERMUTED = 0, OVERFLOWS = 0 }; /* gemm_fragments.cuh */
    static const int span = SPAN, stage = CODES + SCALES;
    const unsigned char *panel, *code;

    __device__ panel_weights() {}
    __device__ panel_weights(const void *of, const ml_skinny_gemm &f, int col) {
        panel = (const unsigned char *)of + (int64_t)(col / TILE) * f.panel;
        code = panel + f.scales;
    }

    __device__ void copy(unsigned char *to, int step) const {
        copy_bytes<CODES>(to, code + (int64_t)step * CODES);
        copy_bytes<SCALES>(to + CODES, panel + (int64_t)step * SCALES);
    }

    __device__ void copy_bulk(unsigned char *to, int step, ml_barrier *full) const {
        ml_barrier_expect(full, CODES + SCALES);
        ml_bulk_copy(to, code + (int64_t)step * CODES, CODES, full);
        ml_bulk_copy(to + CODES, panel + (int64_t)step * SCALES, SCALES, full);
    }
};

/* Integers of 4 bits with bf16 scales.  A lane has half the codes of a word of outputs 2 g and 2 g + 1. */
template <int GROUP, int SPAN = STEP>
struct int4_weights : panel_weights<4, GROUP, bf16, SPAN> {
    typedef panel_weights<4, GROUP, bf16, SPAN> base;
    using base::base;
    __device__ int4_weights() {}
    enum { PER = GROUP < CHUNK ? GROUP : CHUNK }; /* of k in a chunk that share a scale */

    struct fetched {
        uint2 word[STEPS];
        uint32_t scale[CHUNK / PER]; /* of both outputs */
    };

    __device__ static void fetch(fetched &r, uint32_t from, int at) {
        int lane = (int)threadIdx.x % 32;
        uint32_t word =
            from + (uint32_t)((at / 8 + lane % 4 / 2) * TILE + lane / 4 * 2) * 4;
        uint32_t scale =
            from + base::CODES + (uint32_t)(at / GROUP * TILE + lane / 4 * 2) * 2;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            r.word[i] = load_64(word + i * 2 * TILE * 4);
#pragma unroll
        for (int i = 0; i < CHUNK / PER; i++)
            r.scale[i] = load_32(scale + i * TILE * 2);
    }

    /* Two codes times their scale.  A code is the low bits of the bf16 128 + code; integers up to 15
     * and the subtraction are exact. */
    __device__ static uint32_t pair(uint32_t codes, __nv_bfloat162 scale) {
        const bf16 zero = __float2bfloat16(136.0f); /* 128 + 8 */
        __nv_bfloat162 x;

        /* (codes & 0x000f000f) | 0x43004300 in one instruction */
        asm("lop3.b32 %0, %1, %2, %3, 0xea;"
            : "=r"(*(uint32_t *)&x)
            : "r"(codes), "r"(0x000f000f), "r"(0x43004300));
        x = __hmul2(__hsub2(x, __nv_bfloat162(zero, zero)), scale);
        return *(const uint32_t *)&x;
    }

    /* The codes of a byte are brought to bits 0 and 16. */
    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
        unsigned first = (int)threadIdx.x % 2 ? 0x0602 : 0x0400, second = first + 0x0101;
        uint2 w = r.word[i], v = make_uint2(w.x >> 4, w.y >> 4);
        __nv_bfloat162 s = *(const __nv_bfloat162 *)&r.scale[i * 16 / PER];

        a[0] = pair(__byte_perm(w.x, v.x, first), __low2bfloat162(s));
        a[1] = pair(__byte_perm(w.y, v.y, first), __high2bfloat162(s));
        a[2] = pair(__byte_perm(w.x, v.x, second), __low2bfloat162(s));
        a[3] = pair(__byte_perm(w.y, v.y, second), __high2bfloat162(s));
    }
};

/* e4m3, or integers of 8 bits, with f32 scales: the product is rounded to f32, then to bf16. */
template <bool INTEGER> struct byte_weights : panel_weights<8, 128, float, STEP> {
    typedef panel_weights<8, 128, float, STEP> base;
    using base::base;
    __device__ byte_weights() {}

    struct fetched {
        uint16_t code[STEPS][4]; /* of both outputs */
        uint2 scale;             /* a chunk is within a group */
    };

    __device__ static void fetch(fetched &r, uint32_t from, int at) {
        int lane = (int)threadIdx.x % 32;
        uint32_t code = from + (uint32_t)((at + lane % 4 * 4) * TILE + lane / 4 * 2);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                r.code[i][j] = load_16(code + (i * 16 + j) * TILE);
        r.scale =
            load_64(from + base::CODES + (uint32_t)(at / 128 * TILE * 4 + lane / 4 * 8));
    }

    /* Of two codes, which are bytes 0 and 1 of `codes`, or 2 and 3.  An integer is the low bits of
     * the f16 1024 + 128 + integer. */
    template <bool HIGH> __device__ static float2 values(uint32_t codes) {
        if constexpr (INTEGER) {
            uint32_t bits = __byte_perm(codes, 0x64646464, HIGH ? 0x4342 : 0x4140);
            const __half zero = __float2half(1152.0f);
            return __half22float2(__hsub2(*(const __half2 *)&bits, __half2(zero, zero)));
        } else {
            return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(
                (__nv_fp8x2_storage_t)(HIGH ? codes >> 16 : codes), __NV_E4M3)));
        }
    }

    template <bool HIGH> __device__ static uint32_t pair(uint32_t codes, uint32_t scale) {
        float2 v = values<HIGH>(codes);
        float s = __uint_as_float(scale);
        return ml_pack2(v.x * s, v.y * s);
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t codes = __byte_perm(r.code[i][2 * j], r.code[i][2 * j + 1], 0x5140);
            if (INTEGER)
                codes ^= 0x80808080;
            a[2 * j] = pair<false>(codes, r.scale.x);
            a[2 * j + 1] = pair<true>(codes, r.scale.y);
        }
    }
};

/* CALL with W as the kind of quantized weights. */
#define WITH_CODES(dtype_, ...)                                                            \
    switch (dtype_) {                                                                      \
    case ML_INT4: {                                                                        \
        typedef int4_weights<32> W;                                                        \
        __VA_ARGS__;                                                                       \
    } break;                                                                               \
    case ML_INT4_G128: {                                                                   \
        typedef int4_weights<128> W;                                                       \
        __VA_ARGS__;                                                                       \
    } break;                                                                               \
    case ML_FP8: {                                                                         \
        typedef byte_weights<false> W;                                                     \
        __VA_ARGS__;                                                                       \
    } break;                                                                               \
    default: {                                                                             \
        typedef byte_weights<true> W;                                                      \
        __VA_ARGS__;                                                                       \
    }                                                                                      \
    }

/* ---- rings in shared memory ---- */

/* A position in a ring: the parity of its mbarriers changes with each turn. */
struct cursor {
    int at;
    unsigned parity;

    __device__ void advance(int by, int size) {
        at += by;
        if (at >= size) {
            at -= size;
            parity ^= 1;
        }
    }
};

/* The weights of TILES tiles, which the warp that reads them copies, too. */
template <class W, int TILES> struct ring {
    W tile[TILES];
    unsigned char *stage;
    ml_barrier *full;
    int stages, n_step;
    int next; /* step to be copied */
    cursor write, read;

    /* Starts the copies of the next step. */
    __device__ void copy() {
        if (next >= n_step)
            return;
#pragma unroll
        for (int t = 0; t < TILES; t++)
            tile[t].copy(stage + (write.at * TILES + t) * W::stage, next);
        ml_barrier_arrive_copied(full + write.at);
        next++;
        write.advance(1, stages);
    }

    /* One thread calls it, before any other has to do with the ring. */
    __device__ void open() const {
        for (int i = 0; i < stages; i++)
            ml_barrier_init(full + i, 32);
        ml_barrier_init_end();
    }

    __device__ void fill() {
        for (int i = 0; i < stages; i++)
            copy();
    }

    /* The step to be read, when it is there. */
    __device__ uint32_t wait() {
        uint32_t at = ml_smem(stage) + (uint32_t)(read.at * TILES * W::stage);
        ml_barrier_wait(full + read.at, read.parity);
        return at;
    }

    /* The step was read, of which wait has told. */
    __device__ void release() {
        __syncwarp();
        read.advance(1, stages);
        copy();
    }

    __device__ static void fetch(typename W::fetched (&r)[TILES], uint32_t from, int at) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
            W::fetch(r[t], from + t * W::stage, at);
    }
};

/* ---- the rows of x ---- */

/* All rows, in steps of STEP inputs, for the warps of a block. */
struct rows_ring {
    enum { LD = STEP + PAD };
    bf16 *slot;
    ml_barrier *full, *empty; /* [ML_ROW_SLOTS] each */
    int m;
    cursor read, released;

    __device__ uint32_t wait() {
        uint32_t at = ml_smem(slot) + (uint32_t)(read.at * m * LD) * sizeof(bf16);
        ml_barrier_wait(full + read.at, read.parity);
        read.advance(1, ML_ROW_SLOTS);
        return at;
    }

    __device__ void release(bool leader) {
        __syncwarp();
        if (leader)
            ml_barrier_arrive(empty + released.at);
        released.advance(1, ML_ROW_SLOTS);
    }

    /* For so many warps; one thread calls it. */
    __device__ void open(int readers) {
        for (int i = 0; i < ML_ROW_SLOTS; i++) {
            ml_barrier_init(full + i, 32);
            ml_barrier_init(empty + i, (unsigned)readers);
        }
        ml_barrier_init_end();
    }

    /* One warp copies all steps. */
    __device__ void fill(const bf16 *x, int k) {
        const int packs = STEP / 8;
        int lane = (int)threadIdx.x % 32;
        cursor write = {};

        for (int at = 0; at < k; at += STEP) {
            if (at >= ML_ROW_SLOTS * STEP)
                ml_barrier_wait(empty + write.at, write.parity ^ 1);
#pragma unroll 4
            for (int row = lane / packs; row < m; row += 32 / packs)
                ml_copy_async(slot + (write.at * m + row) * LD + lane % packs * 8,
                              x + (int64_t)row * k + at + lane % packs * 8, true);
            ml_barrier_arrive_copied(full + write.at);
            write.advance(1, ML_ROW_SLOTS);
        }
        ml_copy_commit();
        ml_copy_wait<0>();
    }
};

/* ---- products of rows that pass through a ring ---- */

/* B fragments of all rows. */
template <int COLS>
__device__ static void load_columns(uint2 (&b)[COLS], const uint32_t (&x)[COLS], int k) {
#pragma unroll
    for (int j = 0; j < COLS; j++)
        b[j] = load_64(x[j] + (uint32_t)k * sizeof(bf16));
}

/* A step: 16 of k at a time, while the B fragments of the next 16 are loaded. */
template <class W, int TILES, int COLS>
__device__ static void multiply_step(float (&acc)[TILES][COLS][4], uint32_t w,
                                     const uint32_t (&x)[COLS]) {
    typename W::fetched r[2][TILES];
    uint2 b[2][COLS];

    ring<W, TILES>::fetch(r[0], w, 0);
    load_columns(b[0], x, 0);
#pragma unroll
    for (int at = 0; at < STEP; at += CHUNK) {
        if (at + CHUNK < STEP)
            ring<W, TILES>::fetch(r[(at / CHUNK + 1) % 2], w, at + CHUNK);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int k = at + i * 16;
            uint32_t a[TILES][4];
            if (k + 16 < STEP)
                load_columns(b[(i + 1) % 2], x, k + 16);
#pragma unroll
            for (int t = 0; t < TILES; t++)
                W::fragment(a[t], r[at / CHUNK % 2][t], i);
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    ml_mma(acc[t][j], a[t], b[i % 2][j].x, b[i % 2][j].y);
        }
    }
}

template <class W, int TILES, int COLS>
__device__ static void stream_chains(float (&acc)[TILES][COLS][4], ring<W, TILES> &weights,
                                     rows_ring &rows, int n_step) {
    const bool leader = is_leader();
    uint32_t offset[COLS];

#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int lane = (int)threadIdx.x % 32, row = lane / 4 + j * 8;
        row = row < rows.m ? row : rows.m - 1;
        offset[j] = (uint32_t)(row * rows.LD + lane % 4 * 4) * sizeof(bf16);
    }
    for (int step = 0; step < n_step; step++) {
        uint32_t w = weights.wait(), x = rows.wait(), at[COLS];
#pragma unroll
        for (int j = 0; j < COLS; j++)
            at[j] = x + offset[j];
        multiply_step<W>(acc, w, at);
        weights.release();
        rows.release(leader);
    }
}

/* ---- epilogue ---- */

/* The outputs of a lane: of column `col` and the next, for two rows of each 8. */
__device__ static int row_of(int i) {
    return i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
}

template <int COLS>
__device__ static void load_addend(float (&v)[COLS][2][2], const ml_skinny_gemm &f,
                                   int col) {
#pragma unroll
    for (int i = 0; i < 2 * COLS; i++)
        if (f.addend && row_of(i) < f.m)
            ml_load(v[i / 2][i % 2], f.addend + (int64_t)row_of(i) * f.part[0].n + col);
}

template <int TILES, int COLS>
__device__ static void put(const ml_skinny_gemm &f, const float (&acc)[TILES][COLS][4],
                           const float (&addend)[COLS][2][2], int part, int col) {
#pragma unroll
    for (int i = 0; i < 2 * COLS; i++) {
        int row = row_of(i);
        int64_t at = (int64_t)row * f.part[part].n + col;
        float v[2], u[2];
        if (row >= f.m)
            continue;
        ml_skinny_finish(v, acc[0][i / 2][i % 2], acc[0][i / 2][2 + i % 2], f.part[part],
                         at, col);
        if constexpr (TILES == 2) {
            ml_skinny_finish(u, acc[1][i / 2][i % 2], acc[1][i / 2][2 + i % 2], f.part[1],
                             at, col);
            ml_skinny_put_gated(f, v, u, at);
        } else if (f.addend) {
            ml_skinny_put_sum(f, v, addend[i / 2][i % 2], at);
        }
    }
}

/* ---- tiles of a block ---- */

/* The tiles of the block's i-th chain: column `col` of part `part` on, or of that part and the next. */
struct place {
    int part, col;
    bool has_work;
};

template <int TILES> __device__ static place place_of(const ml_skinny_gemm &f, int i) {
    place r = { 0, i * TILE, false };

    while (TILES == 1 && r.part < f.n_part - 1 && r.col >= f.part[r.part].n)
        r.col -= f.part[r.part++].n;
    r.has_work = r.col < f.part[r.part].n;
    return r;
}

/* The ring of a place. */
template <class W, int TILES>
__device__ static ring<W, TILES> ring_of(const ml_skinny_gemm &f, const place &at,
                                         unsigned char *stage, ml_barrier *full,
                                         int stages) {
    ring<W, TILES> r = {};

#pragma unroll
    for (int t = 0; t < TILES; t++)
        r.tile[t] = W(f.part[TILES == 1 ? at.part : t].w, f, at.col);
    r.stage = stage;
    r.full = full;
    r.stages = stages;
    r.n_step = at.has_work ? f.k / STEP : 0;
    return r;
}

static inline int items_of(const ml_skinny_gemm *f) {
    int n = 0;
    for (int i = 0; i < (f->gated ? 1 : f->n_part); i++)
        n += f->part[i].n / TILE;
    return n;
}

static inline size_t align_up(size_t n) {
    return (n + 127) / 128 * 128;
}

#endif
