/* gemm_codes.cu - Small-M GEMM for decode with quantized weights, which are read as codes.
 *
 * Weights are operand A of the mma: a tile is 16 outputs, and up to 8 rows of x are the 8 columns of
 * operand B.  An output is one chain of mma steps over ascending k, as everywhere: no split-K.  A warp has
 * the chain of a tile, and there is one block for each SM.  The loads of the weights begin before the
 * previous kernel has ended (PDL): weights do not depend on it.  The rows of x are in shared memory as a
 * whole, for the norm in the prologue.
 *
 * A chain waits at each of its instructions, so that other warps of the block, its helpers, bring the
 * weights.  Where an SM has few tiles, helpers load and dequantize them, and write the fragments to shared
 * memory, whose bandwidth bounds these chains; where it has many, one thread of a helper copies, and the
 * chains dequantize, which hide each other's latency. */
#include "backend/cuda/gemm/gemm_codes.cuh"
#include "backend/cuda/gemm/gemm_fragments.cuh"
#include "backend/cuda/gemm/skinny_norm.cuh"

enum {
    MOST_WARPS = 17, /* with helpers that dequantize; else 16 */
    MOST_CHAINS = 12,
    MADE_CHAINS = 4, /* the most of a block whose helpers dequantize */
    COPIED = 3,      /* chains whose weights a helper copies */
    LONG = 2,        /* steps of a slot of fragments */
    RAW_BYTES = 72 * 1024,
    MOST_ROWS = 8 /* every block computes their norm */
};

/* Named barriers.  A block with helpers that dequantize has at most two pairs of chains. */
enum { BAR_PROLOGUE = 1, BAR_NORM, BAR_PAIRS, BAR_FRAGMENTS = BAR_PAIRS + MADE_CHAINS / 2 };

/* How a block is divided: warps of chains, then their helpers, then warps that only take part in the
 * prologue.  Offsets in shared memory are in bytes. */
struct plan {
    int chains, helpers, warps;
    int stages;     /* of a ring of weights */
    int made_steps; /* of a slot of fragments that helpers make; 0: they do not */
    size_t squares, x, exchange, raw, bytes;
};

struct codes_call {
    ml_skinny_gemm f;
    plan p;
};

template <int BAR> __device__ static void named_sync(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(BAR), "r"(threads) : "memory");
}

/* ---- fragments of helpers ---- */

/* The fragments of a chain: a slot for each of its helpers, of STEPS_OF steps.  The chain waits for a slot at
 * a named barrier: at a branch, which a wait for an mbarrier has, the compiler waits for all loads. */
template <int STEPS_OF> struct made_ring {
    enum {
        SLOT = STEPS_OF * STEP,
        STEP_BYTES = STEP / 16 * FRAGMENT_BYTES,
        BYTES = STEPS_OF * STEP_BYTES
    };
    struct fetched {
        uint4 a[STEPS];
    };
    unsigned char *slot;
    ml_barrier *empty;
    int slots, id;
    cursor read;

    /* One thread calls it. */
    __device__ void open() {
        for (int i = 0; i < slots; i++)
            ml_barrier_init(empty + i);
        ml_barrier_init_end();
    }

    __device__ uint32_t wait() {
        asm volatile("bar.sync %0, 64;" ::"r"(id + read.at) : "memory");
        return ml_smem(slot + read.at * BYTES);
    }

    __device__ void release(bool leader) {
        __syncwarp();
        if (leader)
            ml_barrier_arrive(empty + read.at);
        read.advance(1, slots);
    }

    __device__ static void fetch(fetched &r, uint32_t from, int at) {
        from += (uint32_t)(at / 16 * FRAGMENT_BYTES + unit_of((int)threadIdx.x % 32) * 16);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            r.a[i] = load_128(from + i * FRAGMENT_BYTES);
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
        a[0] = r.a[i].x;
        a[1] = r.a[i].y;
        a[2] = r.a[i].z;
        a[3] = r.a[i].w;
    }
};

/* A helper makes the fragments of its slot, again and again, and loads the next meanwhile. */
template <class W, int STEPS_OF>
__device__ static void help(const W &weights, const made_ring<STEPS_OF> &to, int helper,
                            int n_step) {
    const int every = to.slots * STEPS_OF;
    unsigned char *slot = to.slot + helper * to.BYTES;
    maker<W> held[STEPS_OF];
    unsigned turn = 0;

#pragma unroll
    for (int j = 0; j < STEPS_OF; j++)
        if (helper * STEPS_OF < n_step)
            held[j].load(weights, helper * STEPS_OF + j);
    for (int step = helper * STEPS_OF; step < n_step; step += every) {
        ml_barrier_wait(to.empty + helper, ++turn % 2);
#pragma unroll
        for (int j = 0; j < STEPS_OF; j++) {
            held[j].make(slot + j * to.STEP_BYTES);
            if (step + every < n_step)
                held[j].load(weights, step + every + j);
        }
        __syncwarp();
        asm volatile("bar.arrive %0, 64;" ::"r"(to.id + helper) : "memory");
    }
}

/* ---- weights that a helper copies ---- */

/* The ring of a chain: a thread copies, and tells the chain by `full`, which tells it by `empty`. */
template <class W> struct copied_ring {
    enum { SLOT = W::span };
    W tile;
    unsigned char *stage;
    ml_barrier *full, *empty;
    int stages, n_step;
    cursor write, read;

    /* One thread calls it. */
    __device__ void open() const {
        for (int i = 0; i < stages; i++) {
            ml_barrier_init(full + i);
            ml_barrier_init(empty + i);
        }
        ml_barrier_init_end();
    }

    __device__ void copy(int step) {
        if (step >= n_step)
            return;
        if (step >= stages)
            ml_barrier_wait(empty + write.at, write.parity ^ 1);
        tile.copy_bulk(stage + write.at * W::stage, step, full + write.at);
        write.advance(1, stages);
    }

    __device__ uint32_t wait() {
        ml_barrier_wait(full + read.at, read.parity);
        return ml_smem(stage + read.at * W::stage);
    }

    __device__ void release(bool leader) {
        __syncwarp();
        if (leader)
            ml_barrier_arrive(empty + read.at);
        read.advance(1, stages);
    }
};

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

/* The same sums, slowly, from the exact values of E: of tiles with a scale that overflows. */
template <class E, class W, int COLS>
__device__ static void chains_exact(float (&acc)[COLS][4], const W &weights,
                                    unsigned char *stage, const lane_rows<COLS> &x,
                                    int n_k) {
    operands<COLS> o;
    typename W::fetched r;

    memset(acc, 0, sizeof acc);
    for (int k = 0; k < n_k; k += W::span) {
        __syncwarp();
        weights.copy(stage, k / W::span);
        ml_copy_commit();
        ml_copy_wait<0>();
        __syncwarp();
        for (int at = 0; at < W::span; at += CHUNK) {
            fetch<W>(o, r, x, k, ml_smem(stage), at);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                E::exact(o.a[i], r, i);
#pragma unroll
                for (int j = 0; j < COLS; j++)
                    ml_mma(acc[j], o.a[i], o.b[j][i].x, o.b[j][i].y);
            }
        }
    }
}

/* Has a lane of the warp a sum that is infinite or NaN? */
template <int COLS> __device__ static bool overflowed(const float (&acc)[COLS][4]) {
    bool any = false;

#pragma unroll
    for (int i = 0; i < COLS * 4; i++)
        any |= !isfinite(acc[i / 4][i % 4]);
    return __any_sync(~0u, any);
}

/* ---- prologue: rows of x ---- */

/* The order of eight inputs in which a lane has those of two bytes of codes (gemm_fragments.cuh). */
template <bool PERMUTED> __device__ static void store_pack(bf16 *to, const float (&v)[8]) {
    const float permuted[8] = { v[0], v[4], v[1], v[5], v[2], v[6], v[3], v[7] };
    if (PERMUTED)
        ml_store(to, permuted);
    else
        ml_store(to, v);
}

/* The first NORM_WARPS warps of the prologue. */
template <bool PERMUTED>
__device__ static void put_normed_rows(bf16 *x, float *squares,
                                       const float (&w)[NORM_PACKS][8],
                                       const ml_skinny_gemm &f, int thread) {
    auto put = [&](int row, int i, const float(&v)[8]) {
        store_pack<PERMUTED>(x + row * (f.k + PAD) + i, v);
    };
    if (thread < NORM_WARPS * 32)
        norm_rows<BAR_NORM>(put, squares, w, f, thread);
}

/* Copies by a thread: what many threads load waits for the loads of the weights before it. */
template <bool PERMUTED>
__device__ static void copy_rows(bf16 *x, ml_barrier *full, const ml_skinny_gemm &f,
                                 int thread, int threads) {
    const unsigned bytes = (unsigned)f.k * sizeof(bf16);

    if (thread == 0) {
        ml_barrier_expect(full, (unsigned)f.m * bytes);
        for (int row = 0; row < f.m; row++)
            ml_bulk_copy(x + row * (f.k + PAD), f.x + (int64_t)row * f.k, bytes, full);
    }
    ml_barrier_wait(full, 0);
    if constexpr (PERMUTED)
        for (int i = thread; i < f.m * (f.k / 8); i += threads) {
            bf16 *at = x + i / (f.k / 8) * (f.k + PAD) + i % (f.k / 8) * 8;
            float v[8];
            ml_load(v, at);
            store_pack<true>(at, v);
        }
}

template <bool PERMUTED>
__device__ static void prologue(unsigned char *smem, const codes_call &c,
                                const float (&w)[NORM_PACKS][8], int thread, int threads) {
    bf16 *x = (bf16 *)(smem + c.p.x);

    ml_grid_wait();
    ml_grid_release(); /* not earlier: attn_decode_fused.cu relies on it */
    if (c.f.norm)
        put_normed_rows<PERMUTED>(x, (float *)(smem + c.p.squares), w, c.f, thread);
    else
        copy_rows<PERMUTED>(x, (ml_barrier *)smem, c.f, thread, threads);
    named_sync<BAR_PROLOGUE>(threads);
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

/* The block's i-th chain: its weights, and its rings, whose mbarriers lie behind that of the rows of x. */
template <class W>
__device__ static copied_ring<W> copied_of(unsigned char *smem, const codes_call &c,
                                           const place &at, int i) {
    copied_ring<W> r = {};

    r.tile = W(c.f.part[at.part].w, c.f, at.col);
    r.stage = smem + c.p.raw + (size_t)i * c.p.stages * W::stage;
    r.full = (ml_barrier *)smem + 1 + 2 * i * c.p.stages;
    r.empty = r.full + c.p.stages;
    r.stages = c.p.stages;
    r.n_step = at.has_work ? c.f.k / W::span : 0;
    return r;
}

template <int STEPS_OF>
__device__ static made_ring<STEPS_OF> made_of(unsigned char *smem, const codes_call &c,
                                              int i) {
    made_ring<STEPS_OF> r = {};

    r.slots = c.p.helpers / c.p.chains;
    r.slot = smem + c.p.raw + (size_t)(i * r.slots) * r.BYTES;
    r.empty = (ml_barrier *)smem + 1 + i * r.slots;
    r.id = BAR_FRAGMENTS + i * r.slots;
    return r;
}

/* A helper that copies the weights of COPIED chains. */
template <class W>
__device__ static void copy_weights(unsigned char *smem, const codes_call &c, int helper) {
    copied_ring<W> r[COPIED];

#pragma unroll
    for (int j = 0; j < COPIED; j++) {
        int i = helper + j * c.p.helpers;
        place at = tile_of(c.f, (int)blockIdx.x * c.p.chains + i);
        at.has_work = at.has_work && i < c.p.chains;
        r[j] = copied_of<W>(smem, c, at, i);
    }
    for (int step = 0; step < c.f.k / W::span; step++)
#pragma unroll
        for (int j = 0; j < COPIED; j++)
            r[j].copy(step);
}

/* The warp before has the gate's tile, this one that of the up projection: gives it the sums. */
template <int COLS>
__device__ static void give_sums(const float (&acc)[COLS][4], float4 *to, int pair) {
#pragma unroll
    for (int j = 0; j < COLS; j++)
        to[j * 32] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    asm volatile("bar.sync %0, 64;" ::"r"(BAR_PAIRS + pair) : "memory");
}

template <int COLS>
__device__ static void take_sums(float (&acc)[COLS][4], const float4 *from, int pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(BAR_PAIRS + pair) : "memory");
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

/* A chain's sums. */
template <class W, int COLS, int MADE>
__device__ static void multiply(float (&acc)[COLS][4], unsigned char *smem,
                                const codes_call &c, const place &at, int i) {
    const lane_rows<COLS> x((const bf16 *)(smem + c.p.x), c.f);

    if constexpr (MADE) {
        auto made = made_of<MADE>(smem, c, i);
        chains<made_ring<MADE>>(acc, made, x, c.f.k);
        if constexpr (maker<W>::OVERFLOWS)
            if (overflowed(acc))
                chains_exact<maker<W>>(acc, W(c.f.part[at.part].w, c.f, at.col), made.slot,
                                       x, c.f.k);
    } else {
        auto copied = copied_of<W>(smem, c, at, i);
        chains<W>(acc, copied, x, c.f.k);
        if constexpr (W::OVERFLOWS)
            if (overflowed(acc))
                chains_exact<W>(acc, copied.tile, copied.stage, x, c.f.k);
    }
}

/* MADE: the steps of a slot of fragments that helpers make; 0: the chains dequantize. */
template <class W, int COLS, int MADE>
__global__ void __launch_bounds__((MADE ? MOST_WARPS : 16) * 32)
    codes_kernel(const __grid_constant__ codes_call c) {
    extern __shared__ __align__(128) unsigned char smem[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int helper = warp - c.p.chains;
    bool is_chain = helper < 0, is_helper = helper >= 0 && helper < c.p.helpers;
    int i = (is_helper ? helper : warp) % c.p.chains;
    int thread = (int)threadIdx.x - (is_chain ? 0 : c.p.helpers * 32); /* in the prologue */
    place at = tile_of(c.f, (int)blockIdx.x * c.p.chains + i);
    float acc[COLS][4] = {}, addend[COLS][2][2] = {}, norm[NORM_PACKS][8];

    ml_touch_params(c);
    if (!is_helper) /* before the loads of the weights, which would delay these */
        norm_load_weights(norm, c.f, thread);
    if (threadIdx.x == 0)
        ml_barrier_init((ml_barrier *)smem);
    if (lane == 0 && is_chain) {
        if constexpr (MADE)
            made_of<MADE>(smem, c, i).open();
        else
            copied_of<W>(smem, c, at, i).open();
    }
    __syncthreads();
    if (is_helper) {
        if constexpr (MADE)
            help(W(c.f.part[at.part].w, c.f, at.col), made_of<MADE>(smem, c, i),
                 helper / c.p.chains, at.has_work ? c.f.k / STEP : 0);
        else if (lane == 0)
            copy_weights<W>(smem, c, helper);
        return;
    }
    prologue<MADE == 0 && W::PERMUTED>(smem, c, norm, thread,
                                       (int)blockDim.x - c.p.helpers * 32);
    if (!is_chain || !at.has_work)
        return;
    load_addend(addend, c.f, at.col + lane / 4 * 2);
    multiply<W, COLS, MADE>(acc, smem, c, at, i);
    finish_tile(smem, c, acc, addend, at, warp);
}

/* ---- configuration and launch ---- */

static int tiles_of(const ml_skinny_gemm *f) {
    return items_of(f) * (f->gated ? 2 : 1);
}

/* Offsets in shared memory: the mbarrier of the rows of x and `barriers` others are at 0. */
static bool lay_out(plan *p, const ml_skinny_gemm *f, int barriers, size_t raw) {
    p->squares = align_up((size_t)(1 + barriers) * sizeof(ml_barrier));
    p->x =
        align_up(p->squares + (f->norm ? (size_t)(f->m * NORM_WARPS) * sizeof(float) : 0));
    p->exchange = align_up(p->x + (size_t)f->m * (size_t)(f->k + PAD) * sizeof(bf16));
    p->raw = p->exchange + (f->gated ? (size_t)p->chains * 512 : 0);
    p->bytes = p->raw + raw;
    return p->bytes <= MOST_SMEM;
}

/* Slots of so many steps, one for each helper. */
static bool has_room_made(plan *p, const ml_skinny_gemm *f, int steps) {
    p->made_steps = steps;
    return f->k % (steps * STEP) == 0 &&
           lay_out(p, f, p->helpers,
                   (size_t)(p->helpers * steps * STEP / 16 * FRAGMENT_BYTES));
}

/* The most stages that are of use and fit in shared memory; at least two. */
template <class W> static bool has_room_copied(plan *p, const ml_skinny_gemm *f) {
    const int n_step = f->k / W::span;
    size_t raw;

    p->stages = n_step + 1;
    do {
        p->stages--;
        raw = (size_t)(p->chains * p->stages * W::stage);
    } while (p->stages > 0 && (!lay_out(p, f, 2 * p->chains * p->stages, raw) ||
                               (raw > RAW_BYTES && p->stages > 2)));
    return p->stages >= 2 || (p->stages == 1 && n_step == 1);
}

/* What chains read from their rings. */
template <class W> struct copied_weights { typedef W type; };
template <int GROUP> struct copied_weights<int4_weights<GROUP>> {
    typedef permuted_int4<GROUP> type;
};

/* Warps for one block on each SM. */
template <class W> static bool plan_for(plan *p, const ml_skinny_gemm *f) {
    typedef typename copied_weights<W>::type copied;
    int rest;

    memset(p, 0, sizeof *p);
    p->chains = (tiles_of(f) + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    p->chains = p->chains < MOST_CHAINS ? p->chains : MOST_CHAINS;
    p->chains +=
        f->gated && p->chains % 2; /* a gate and its up projection are in one block */
    if (p->chains <= MADE_CHAINS)  /* 4 or 5 helpers take issue slots of the chains */
        p->helpers = p->chains * (p->chains <= 3 ? 3 : 2);
    else
        p->helpers = (p->chains + COPIED - 1) / COPIED;
    rest = NORM_WARPS - p->chains;
    p->warps = p->chains + p->helpers + (rest > 0 ? rest : 0);
    if (p->chains <= MADE_CHAINS)
        return ((int)maker<W>::STEPS_MADE == (int)LONG && has_room_made(p, f, LONG)) ||
               has_room_made(p, f, 1);
    return f->k % copied::span == 0 ? has_room_copied<copied>(p, f)
                                    : has_room_copied<W>(p, f);
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

    if (f->m < 1 || f->m > MOST_ROWS || f->k % STEP != 0 || (f->norm && f->k > NORM_WIDEST))
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

template <class W, int MADE> static void launch(ml_cuda_stream *s, const codes_call &c) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(codes_kernel<W, 1, MADE>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)MOST_SMEM),
                 "products with codes");
    ml_cuda_launch(s, "products with codes", codes_kernel<W, 1, MADE>,
                   dim3(ml_cuda_blocks(tiles_of(&c.f), c.p.chains)),
                   (unsigned)c.p.warps * 32, c.p.bytes, c);
}

template <class W> static void run(ml_cuda_stream *s, const codes_call &c) {
    typedef typename copied_weights<W>::type copied;

    if (c.p.made_steps == LONG)
        launch<W, maker<W>::STEPS_MADE>(s, c);
    else if (c.p.made_steps)
        launch<W, 1>(s, c);
    else if (c.f.k % copied::span == 0)
        launch<copied, 0>(s, c);
    else
        launch<W, 0>(s, c);
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
