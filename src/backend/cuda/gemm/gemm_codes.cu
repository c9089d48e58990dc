/* gemm_codes.cu - Small-M GEMM for decode with quantized weights, which are read as codes.
 *
 * Weights are operand A of the mma: a tile is 16 outputs, and up to 8 rows of x are the 8 columns of
 * operand B.  An output is one chain of mma steps over ascending k, as everywhere: no split-K.  A warp has
 * the chain of a tile, and there is one block for each SM.  The copies of the weights begin before the
 * previous kernel has ended (PDL): weights do not depend on it.  The rows of x are in shared memory as a
 * whole, for the norm in the prologue.
 *
 * A chain waits at each of its instructions, so that other warps of the block, its helpers, copy the
 * weights.  Where an SM has few tiles, helpers dequantize them, too, and write the fragments to shared
 * memory; where it has many, the chains do it, which hide each other's latency. */
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_tiles.cuh"

enum {
    NARROW = 1024, /* the widest row that norm.cu sums in one warp */
    PARTS = 8,     /* warps that share a wider one there */
    MOST_WARPS = 16,
    MOST_CHAINS = 12,
    PROLOGUE_WARPS = 8, /* at least, without the helpers */
    MADE_CHAINS = 4,    /* the most of a block whose helpers dequantize */
    COPIED = 3,         /* chains whose weights a helper copies */
    LONG = 2,           /* steps of a slot of fragments */
    RAW_BYTES = 72 * 1024,
    MOST_ROWS = 8 /* every block computes their norm */
};

/* How a block is divided: warps of chains, then their helpers, then warps that only take part in the
 * prologue.  Offsets in shared memory are in bytes. */
struct plan {
    int chains, helpers, warps;
    int stages;     /* of a ring of weights */
    int made_steps; /* of a slot of fragments that helpers make; 0: they do not */
    size_t norm, squares, x, exchange, made, raw, bytes;
};

struct codes_call {
    ml_skinny_gemm f;
    plan p;
};

/* ---- fragments of helpers ---- */

/* Fragments that helpers have made: for 16 of k of a tile 16 bytes of each lane.  A slot has STEPS_OF steps:
 * the chain waits once for all of them, since a wait and a branch take as long as several mma steps. */
template <int STEPS_OF> struct made_ring {
    enum {
        SLOT = STEPS_OF * STEP,
        SLOTS = STEPS_OF > 1 ? 2 : 4,
        PACKS = STEP / 16 * 32, /* of a step */
        BYTES = SLOTS * STEPS_OF * PACKS * (int)sizeof(uint4)
    };
    struct fetched {
        uint4 a[STEPS];
    };
    uint4 *slot;
    ml_barrier *full, *empty; /* [SLOTS] each */
    cursor read;

    /* One thread calls it. */
    __device__ void open() {
        for (int i = 0; i < SLOTS; i++) {
            ml_barrier_init(full + i, STEPS_OF);
            ml_barrier_init(empty + i);
        }
        ml_barrier_init_end();
    }

    __device__ uint32_t wait() {
        ml_barrier_wait(full + read.at, read.parity);
        return ml_smem(slot + read.at * STEPS_OF * PACKS);
    }

    __device__ void release(bool leader) {
        __syncwarp();
        if (leader)
            ml_barrier_arrive(empty + read.at);
        read.advance(1, SLOTS);
    }

    __device__ static void fetch(fetched &r, uint32_t from, int at) {
        from += (uint32_t)(at / 16 * 32 + (int)threadIdx.x % 32) * sizeof(uint4);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            r.a[i] = load_128(from + i * 32 * sizeof(uint4));
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
        a[0] = r.a[i].x;
        a[1] = r.a[i].y;
        a[2] = r.a[i].z;
        a[3] = r.a[i].w;
    }
};

/* The fragments of a step. */
template <class W> __device__ static void make(uint4 *to, uint32_t from) {
    typename W::fetched r[2];

    W::fetch(r[0], from, 0);
#pragma unroll
    for (int at = 0; at < STEP; at += CHUNK) {
        if (at + CHUNK < STEP)
            W::fetch(r[(at / CHUNK + 1) % 2], from, at + CHUNK);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            W::fragment(a, r[at / CHUNK % 2], i);
            to[(at / 16 + i) * 32] = make_uint4(a[0], a[1], a[2], a[3]);
        }
    }
}

/* A helper makes the fragments of its steps, from step `first` on. */
template <class W, int STEPS_OF>
__device__ static void help(ring<W, 1> &from, made_ring<STEPS_OF> &to, int first) {
    const bool leader = is_leader();

    for (int step = first; step < from.n_step; step += from.every) {
        uint32_t raw = from.wait();
        int turn = step / STEPS_OF, at = turn % to.SLOTS;
        if (turn >= to.SLOTS)
            ml_barrier_wait(to.empty + at, (unsigned)(turn / to.SLOTS - 1) % 2);
        make<W>(to.slot + (at * STEPS_OF + step % STEPS_OF) * to.PACKS +
                    (int)threadIdx.x % 32,
                raw);
        from.release(leader);
        if (leader)
            ml_barrier_arrive(to.full + at);
    }
}

/* ---- the mainloop ---- */

/* A and B fragments of CHUNK of k; of B those of COLS times 8 rows of x. */
template <int COLS> struct operands {
    uint32_t a[STEPS][4];
    uint2 b[COLS][STEPS];
};

/* Where a lane finds its B fragments of rows 8 j to 8 j + 7 of x. */
template <int COLS> struct lane_rows {
    uint32_t x[COLS];

    __device__ lane_rows(const bf16 *of, const ml_skinny_gemm &f) {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            int row = lane / 4 + j * 8;
            x[j] = ml_smem(of + (row < f.m ? row : f.m - 1) * (f.k + PAD) + lane % 4 * 4);
        }
    }
};

template <class S, int COLS>
__device__ static void fetch(operands<COLS> &o, typename S::fetched &r,
                             const lane_rows<COLS> &x, int k, uint32_t w, int at) {
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            o.b[j][i] = load_64(x.x[j] + (uint32_t)(k + at + i * 16) * sizeof(bf16));
    S::fetch(r, w, at);
}

/* The mainloop of a warp, whose weights, or fragments of them, R brings.  While a chunk is multiplied,
 * step by step, each of which needs the result of the one before, the fragments of the next are made; a
 * stage is released after its last chunk was fetched. */
template <class S, class R, int COLS>
__device__ static void chains(float (&acc)[COLS][4], R &s, const lane_rows<COLS> &x,
                              int n_k) {
    const int per = R::SLOT / CHUNK;
    const bool leader = is_leader();
    uint32_t w = s.wait();
    operands<COLS> o[2];
    typename S::fetched r;
    int k = 0;

    fetch<S>(o[0], r, x, k, w, 0);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        S::fragment(o[0].a[i], r, i);
    while (k < n_k) {
#pragma unroll
        for (int c = 0; c < per; c++) {
            operands<COLS> &now = o[c % 2], &next = o[(c + 1) % 2];
            if (c + 1 == per) {
                k += R::SLOT;
                if (k < n_k) {
                    s.release(leader);
                    w = s.wait();
                }
            }
            /* After the last chunk this fetches the first of its stage again. */
            fetch<S>(next, r, x, k < n_k ? k : 0, w, (c + 1) % per * CHUNK);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
#pragma unroll
                for (int j = 0; j < COLS; j++)
                    ml_mma(acc[j], now.a[i], now.b[j][i].x, now.b[j][i].y);
                S::fragment(next.a[i], r, i);
            }
        }
    }
}

/* ---- prologue: rows of x, and the norm ---- */

__device__ static void copy_rows(bf16 *x, const ml_skinny_gemm &f, int thread,
                                 int threads) {
    for (int row = 0; row < f.m; row++) {
        const bf16 *from = f.x + (int64_t)row * f.k;
#pragma unroll 4
        for (int i = thread * 8; i < f.k; i += threads * 8)
            *(uint4 *)(x + row * (f.k + PAD) + i) = *(const uint4 *)(from + i);
    }
}

/* Sums of squares in the order of norm.cu, where a warp has a row of up to NARROW numbers and PARTS
 * warps share a wider one: the sum of such a warp. */
__device__ static float squares_of(const bf16 *row, int k, int part, int parts) {
    float sum = 0.0f;

#pragma unroll 4
    for (int i = 8 * (32 * part + (int)threadIdx.x % 32); i < k; i += 256 * parts) {
        float v[8];
        ml_load(v, row + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    return ml_warp_sum(sum);
}

/* 1 / the root mean square of a row. */
__device__ static float scale_of(const float *squares, int parts, const ml_skinny_gemm &f) {
    float sum = 0.0f;
    for (int i = 0; i < parts; i++)
        sum += squares[i];
    return 1.0f / sqrtf(sum / (float)f.k + f.eps);
}

__device__ static void norm_row(bf16 *x, const float *w, float scale,
                                const ml_skinny_gemm &f, int row, int thread, int threads) {
    for (int i = thread * 8; i < f.k; i += threads * 8) {
        float v[8];
        ml_load(v, f.x + (int64_t)row * f.k + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = (v[j] * scale) * (w[i + j] + (f.plus_one ? 1.0f : 0.0f));
        ml_store(x + row * (f.k + PAD) + i, v);
        if (blockIdx.x == 0 && f.normed)
            ml_store(f.normed + (int64_t)row * f.k + i, v);
    }
}

/* The warps of the prologue wait for each other; helpers go on. */
__device__ static void prologue_sync(int threads) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

__device__ static void prologue(unsigned char *smem, const codes_call &c, int thread,
                                int threads) {
    const ml_skinny_gemm &f = c.f;
    float *norm = (float *)(smem + c.p.norm), *squares = (float *)(smem + c.p.squares);
    bf16 *x = (bf16 *)(smem + c.p.x);
    int parts = f.k <= NARROW ? 1 : PARTS;

    if (f.norm) /* before the wait: weights do not depend on the previous kernel */
        for (int i = thread * 4; i < f.k; i += threads * 4)
            *(float4 *)(norm + i) = *(const float4 *)(f.norm + i);
    ml_grid_wait();
    ml_grid_release(); /* not earlier: prefetching one kernel ahead is enough */
    if (!f.norm) {
        copy_rows(x, f, thread, threads);
        prologue_sync(threads);
        return;
    }
    for (int i = thread / 32; i < f.m * parts; i += threads / 32) {
        float sum = squares_of(f.x + (int64_t)(i / parts) * f.k, f.k, i % parts, parts);
        if (thread % 32 == 0)
            squares[i] = sum;
    }
    prologue_sync(threads);
    for (int row = 0; row < f.m; row++)
        norm_row(x, norm, scale_of(squares + row * parts, parts, f), f, row, thread,
                 threads);
    prologue_sync(threads);
}

/* ---- the kernel ---- */

/* Tile i of the product: gate and up projection alternate, others follow each other. */
__device__ static place tile_of(const ml_skinny_gemm &f, int i) {
    place r;

    if (!f.gated)
        return place_of<1>(f, i);
    r = place_of<2>(f, i / 2);
    r.part = i % 2;
    return r;
}

/* The ring of weights number `index` of the block; SHARED: of a chain, with the warp that copies. */
template <class W, bool SHARED>
__device__ static ring<W, 1> raw_ring(unsigned char *smem, const codes_call &c,
                                      const place &at, int index, int every) {
    ml_barrier *full = (ml_barrier *)smem + index * c.p.stages * (SHARED ? 2 : 1);
    return ring_of<W, 1>(c.f, at, smem + c.p.raw + (size_t)index * c.p.stages * W::stage,
                         full, SHARED ? full + c.p.stages : NULL, c.p.stages, every);
}

/* A helper that copies the weights of COPIED chains. */
template <class W>
__device__ static void copy_weights(unsigned char *smem, const codes_call &c, int helper) {
    ring<W, 1> r[COPIED];
    int helpers = c.p.helpers;

#pragma unroll
    for (int j = 0; j < COPIED; j++) {
        int i = helper + j * helpers;
        place at = tile_of(c.f, (int)blockIdx.x * c.p.chains + i);
        at.has_work = at.has_work && i < c.p.chains;
        r[j] = raw_ring<W, true>(smem, c, at, i, 1);
        r[j].fill(0);
    }
    for (int step = c.p.stages; step < c.f.k / STEP; step++)
#pragma unroll
        for (int j = 0; j < COPIED; j++)
            r[j].copy();
    ml_copy_commit();
    ml_copy_wait<0>();
}

/* The fragments of the block's i-th chain. */
template <int STEPS_OF>
__device__ static made_ring<STEPS_OF> made_of(unsigned char *smem, const codes_call &c,
                                              int i) {
    typedef made_ring<STEPS_OF> made;
    ml_barrier *full = (ml_barrier *)smem + c.p.helpers * c.p.stages + 2 * i * made::SLOTS;
    return {
        (uint4 *)(smem + c.p.made + (size_t)i * made::BYTES), full, full + made::SLOTS, {}
    };
}

/* The warp before has the gate's tile, this one that of the up projection: gives it the sums. */
template <int COLS>
__device__ static void give_sums(const float (&acc)[COLS][4], float4 *to, int pair) {
#pragma unroll
    for (int j = 0; j < COLS; j++)
        to[j * 32] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    asm volatile("bar.sync %0, 64;" ::"r"(2 + pair) : "memory");
}

template <int COLS>
__device__ static void take_sums(float (&acc)[COLS][4], const float4 *from, int pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(2 + pair) : "memory");
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        float4 v = from[j * 32];
        acc[j][0] = v.x;
        acc[j][1] = v.y;
        acc[j][2] = v.z;
        acc[j][3] = v.w;
    }
}

/* The block's warp `warp` stores its sums. */
template <int COLS>
__device__ static void
finish_tile(unsigned char *smem, const codes_call &c, const float (&acc)[COLS][4],
            const float (&addend)[COLS][2][2], const place &at, int warp) {
    int lane = (int)threadIdx.x % 32, col = at.col + lane / 4 * 2;
    float4 *between = (float4 *)(smem + c.p.exchange) + warp / 2 * COLS * 32 + lane;
    float both[2][COLS][4];

    memcpy(both[0], acc, sizeof acc);
    if (!c.f.gated) {
        put<1, COLS>(c.f, *(float(*)[1][COLS][4])both, addend, at.part, col);
    } else if (at.part == 1) {
        give_sums(acc, between, warp / 2);
    } else {
        take_sums(both[1], between, warp / 2);
        put<2, COLS>(c.f, both, addend, 0, col);
    }
}

/* MADE: the steps of a slot of fragments that helpers make; 0: the chains dequantize. */
template <class W, int COLS, int MADE>
__global__ void __launch_bounds__(MOST_WARPS * 32)
    codes_kernel(const __grid_constant__ codes_call c) {
    extern __shared__ __align__(128) unsigned char smem[];
    const ml_skinny_gemm &f = c.f;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int helper = warp - c.p.chains;
    bool is_chain = helper < 0, is_helper = helper >= 0 && helper < c.p.helpers;
    int i = (is_helper ? helper : warp) % c.p.chains;
    place at = tile_of(f, (int)blockIdx.x * c.p.chains + i);
    ring<W, 1> raw = raw_ring<W, MADE == 0>(smem, c, at, MADE && is_helper ? helper : i,
                                            MADE ? c.p.helpers / c.p.chains : 1);
    auto made = made_of < MADE ? MADE : 1 > (smem, c, i);
    float acc[COLS][4] = {}, addend[COLS][2][2] = {};

    if (lane == 0 && (MADE ? is_helper : is_chain))
        raw.open();
    if (lane == 0 && MADE && is_chain)
        made.open();
    __syncthreads();
    if (is_helper) {
        if constexpr (MADE) {
            raw.fill(helper / c.p.chains);
            help(raw, made, helper / c.p.chains);
        } else {
            copy_weights<W>(smem, c, helper);
        }
        return;
    }
    prologue(smem, c, (int)threadIdx.x - (is_chain ? 0 : c.p.helpers * 32),
             (int)blockDim.x - c.p.helpers * 32);
    if (!is_chain || !at.has_work)
        return;
    load_addend(addend, f, at.col + lane / 4 * 2);
    const lane_rows<COLS> x((const bf16 *)(smem + c.p.x), f);
    if constexpr (MADE)
        chains<made_ring<MADE>>(acc, made, x, f.k);
    else
        chains<W>(acc, raw, x, f.k);
    finish_tile(smem, c, acc, addend, at, warp);
}

/* ---- configuration and launch ---- */

static int tiles_of(const ml_skinny_gemm *f) {
    return items_of(f) * (f->gated ? 2 : 1);
}

/* Offsets in shared memory with so many stages. */
template <class W> static void lay_out(plan *p, const ml_skinny_gemm *f, int stages) {
    int rings = p->made_steps ? p->helpers : p->chains;
    int slots =
        p->made_steps == LONG ? (int)made_ring<LONG>::SLOTS : (int)made_ring<1>::SLOTS;
    int made =
        p->made_steps == LONG ? (int)made_ring<LONG>::BYTES : (int)made_ring<1>::BYTES;
    int barriers =
        p->made_steps ? rings * stages + 2 * p->chains * slots : 2 * rings * stages;

    p->stages = stages;
    p->norm = align_up((size_t)barriers * sizeof(ml_barrier));
    p->squares = p->norm + (f->norm ? (size_t)f->k * sizeof(float) : 0);
    p->x = align_up(p->squares + (f->norm ? (size_t)f->m * PARTS * sizeof(float) : 0));
    p->exchange = align_up(p->x + (size_t)f->m * (size_t)(f->k + PAD) * sizeof(bf16));
    p->made = p->exchange + (f->gated ? (size_t)p->chains * 512 : 0);
    p->raw = p->made + (p->made_steps ? (size_t)(p->chains * made) : 0);
    p->bytes = p->raw + (size_t)(rings * stages * W::stage);
}

/* The most stages that are of use and fit in shared memory; at least two.  More than RAW_BYTES of copies
 * in flight delay the rows of x. */
template <class W> static bool fits(plan *p, const ml_skinny_gemm *f, int n_step) {
    int stages = n_step;

    do {
        lay_out<W>(p, f, stages);
    } while ((p->bytes > MOST_SMEM || (p->bytes - p->raw > RAW_BYTES && stages > 2)) &&
             --stages > 0);
    return stages >= 2 || (stages == 1 && n_step == 1);
}

/* Warps for one block on each SM. */
template <class W> static bool plan_for(plan *p, const ml_skinny_gemm *f) {
    int n_step = f->k / STEP, rest;

    memset(p, 0, sizeof *p);
    p->chains = (tiles_of(f) + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    p->chains = p->chains < MOST_CHAINS ? p->chains : MOST_CHAINS;
    p->chains +=
        f->gated && p->chains % 2; /* a gate and its up projection are in one block */
    if (p->chains <= MADE_CHAINS) {
        int each = p->chains <= 3 ? 3 : 2; /* 4 or 5 take issue slots of the chains */
        p->helpers = p->chains * each;
        p->made_steps = f->k % (LONG * STEP) == 0 ? LONG : 1;
        n_step = (n_step + each - 1) / each;
    } else {
        p->helpers = (p->chains + COPIED - 1) / COPIED;
    }
    rest = PROLOGUE_WARPS - p->chains;
    p->warps = p->chains + p->helpers + (rest > 0 ? rest : 0);
    p->warps = p->warps < MOST_WARPS ? p->warps : MOST_WARPS;
    return fits<W>(p, f, n_step);
}

static bool plan_of(plan *p, const ml_skinny_gemm *f) {
    WITH_CODES(f->weights, return plan_for<W>(p, f));
    return false;
}

bool ml_codes_gemm_reads(ml_dtype weights) {
    return weights == ML_INT4 || weights == ML_INT4_G128 || weights == ML_FP8 ||
           weights == ML_INT8;
}

/* Are there few rows, and do they fit in shared memory? */
static bool is_resident(const ml_skinny_gemm *f) {
    plan p;

    if (f->m < 1 || f->m > MOST_ROWS || f->k % STEP != 0 || (f->norm && f->k > 8192))
        return false;
    for (int i = 0; i < f->n_part; i++)
        if (f->part[i].n % TILE != 0)
            return false;
    return plan_of(&p, f);
}

/* More rows than the other kernels take. */
static bool takes_wgmma(const ml_cuda_stream *s, const ml_skinny_gemm *f) {
#if ML_WGMMA
    return f->m > ML_CODES_ROWS && f->m <= ML_JOINT_ROWS && ml_codes_wgmma_supports(s, f);
#else
    (void)s, (void)f;
    return false;
#endif
}

bool ml_codes_gemm_supports(const ml_cuda_stream *s, const ml_skinny_gemm *f) {
    return is_resident(f) || ml_codes_rows_supports(f) || takes_wgmma(s, f);
}

template <class W, int COLS, int MADE>
static void launch(ml_cuda_stream *s, const codes_call &c) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(codes_kernel<W, COLS, MADE>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)MOST_SMEM),
                 "products with codes");
    ml_cuda_launch(s, "products with codes", codes_kernel<W, COLS, MADE>,
                   dim3(ml_cuda_blocks(tiles_of(&c.f), c.p.chains)),
                   (unsigned)c.p.warps * 32, c.p.bytes, c);
}

template <class W> static void run(ml_cuda_stream *s, const codes_call &c) {
    if (c.p.made_steps == LONG)
        launch<W, 1, LONG>(s, c);
    else if (c.p.made_steps)
        launch<W, 1, 1>(s, c);
    else
        launch<W, 1, 0>(s, c);
}

void ml_codes_gemm_run(ml_cuda_stream *s, const ml_skinny_gemm *f) {
    codes_call c = {};

#if ML_WGMMA
    if (takes_wgmma(s, f)) {
        ml_codes_wgmma_run(s, f);
        return;
    }
#endif
    if (!is_resident(f)) {
        ml_codes_rows_run(s, f);
        return;
    }
    c.f = *f;
    plan_of(&c.p, f);
    WITH_CODES(f->weights, run<W>(s, c));
}
