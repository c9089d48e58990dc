/* lora_mma.cu - LORA in bf16, on tensor cores.
 *
 * Adapters that are f32 in memory are rounded to bf16 where they are read; so are u' = scale A x
 * and the gradients of it.  Three kernels, bound by memory:
 *
 *     low        u' = scale A x, or the same of a gradient: many columns to few.  A sum is one chain
 *                of mma steps for each segment of the width, and the segments are added in order.
 *     add        y += B u': few columns to many.
 *     gradient   dB = dz' u', or dA = du' x: a sum over the rows of an adapter in chunks of
 *                ML_LORA_CHUNK of them, added in order.
 *
 * The rows of a tile may have different adapters, and be of different experts: for every pair of
 * them in the tile, a block computes the product of all rows, and keeps the rows of the pair.  A
 * row's products depend on nothing but the row, and a gradient on the adapter's own rows. */
#include "backend/cuda/lora.cuh"
#include "backend/cuda/mma.cuh"

/* Four numbers of a matrix as they are in memory, and rounded. */
template <class W> struct four {
    alignas(4 * sizeof(W)) W v[4];

    /* The first n are there; the others are 0. */
    __device__ void load(const W *from, int64_t n, bool wide) {
        if (wide && n >= 4) {
            *this = *(const four *)from;
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = i < n ? from[i] : ml_as<W>(0.0f);
    }
    __device__ uint2 rounded() const {
        return make_uint2(ml_pack2(ml_f32(v[0]), ml_f32(v[1])),
                          ml_pack2(ml_f32(v[2]), ml_f32(v[3])));
    }
};

/* A matrix of an adapter as a product reads it: w(column, k) is at column k_all + k, or
 * transposed at k n + column. */
template <class W> struct low_matrix {
    const W *w;
    int64_t n, k_all;
    bool wide; /* 16 bytes can be read at once */
};

template <class W>
__device__ static low_matrix<W> matrix_of(const site &s, int group, bool use_b,
                                          int64_t width, bool of_rank, bool transposed) {
    const int64_t each = 16 / sizeof(W);
    low_matrix<W> m;

    m.w = use_b ? (const W *)s.b + group * s.b_group : (const W *)s.a + group * s.a_group;
    m.n = of_rank ? s.rank : width;
    m.k_all = of_rank ? width : s.rank;
    m.wide = (uintptr_t)m.w % 16 == 0 && (transposed ? m.n : m.k_all) % each == 0;
    return m;
}

/* ---- low ---- */

struct low_call {
    const bf16 *x; /* [n_row, n_head, width] */
    bf16 *low;     /* [n_row, n_head, ld] */
    int64_t width, segment, ld;
    int n_head, n_part;
    bool use_b; /* the matrix is B, not A */
};

enum { LOW_ROWS = 64, LOW_DEEP = 64, LOW_THREADS = LOW_ROWS * 2, LOW_LD = LOW_DEEP + 8 };

/* An f32 matrix is rounded when it goes to registers, so that copies to shared memory are
 * asynchronous: all but those of bf16 matrices with odd widths. */
template <class W, int COLS, bool TRANS> struct low_tiles {
    static const int stages = 4, each = 16 / sizeof(W); /* each: numbers of a copy */
    static const int w_rows = TRANS ? LOW_DEEP : COLS, w_cols = TRANS ? COLS : LOW_DEEP;
    alignas(16) bf16 x[stages][LOW_ROWS][LOW_LD];
    alignas(16) W w[stages][w_rows][w_cols + each];

    __device__ void load_x(int at, const low_call &c, int64_t row0, int64_t n_row, int head,
                           int64_t k0, int64_t end) {
        const int per_row = LOW_DEEP / 8;
#pragma unroll
        for (int i = 0; i < LOW_ROWS * per_row / LOW_THREADS; i++) {
            int e = i * LOW_THREADS + (int)threadIdx.x, r = e / per_row;
            int64_t k = k0 + e % per_row * 8;
            bool there = row0 + r < n_row && k < end;
            const bf16 *from = c.x + ((row0 + r) * c.n_head + head) * c.width + k;
            ml_copy_async(&x[at][r][e % per_row * 8], there ? from : c.x, there);
        }
    }

    /* One by one: the first n of a copy's numbers, and zeros. */
    __device__ static void load_singly(float *to, const float *from, int64_t n,
                                       const float *zero) {
        for (int j = 0; j < each; j++)
            ml_copy_async4(to + j, j < n ? from + j : zero, j < n);
    }
    __device__ static void load_singly(bf16 *to, const bf16 *from, int64_t n,
                                       const bf16 *) {
        for (int j = 0; j < each; j++)
            to[j] = j < n ? from[j] : ml_as<bf16>(0.0f);
    }

    __device__ void load_w(int at, const low_matrix<W> &m, int64_t n0, int64_t k0,
                           int64_t end) {
        const int per_row = w_cols / each;
#pragma unroll
        for (int i = 0; i < w_rows * per_row / LOW_THREADS; i++) {
            int e = i * LOW_THREADS + (int)threadIdx.x, r = e / per_row,
                c = e % per_row * each;
            const W *from =
                TRANS ? m.w + (k0 + r) * m.n + n0 + c : m.w + (n0 + r) * m.k_all + k0 + c;
            int64_t n = TRANS ? (k0 + r < end ? m.n - n0 - c : 0)
                              : (n0 + r < m.n ? end - k0 - c : 0);
            if (m.wide)
                ml_copy_async(&w[at][r][c], n >= each ? from : m.w, n >= each);
            else
                load_singly(&w[at][r][c], from, n, m.w);
        }
    }

    /* Two numbers of w, neighbours in k. */
    __device__ uint32_t pair(int at, int n, int k) const {
        return TRANS ? ml_pack2(ml_f32(w[at][k][n]), ml_f32(w[at][k + 1][n]))
                     : ml_pack2(ml_f32(w[at][n][k]), ml_f32(w[at][n][k + 1]));
    }

    __device__ void multiply(float (&acc)[COLS / 8][4], int at) const {
        int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
        for (int k = 0; k < LOW_DEEP; k += 16) {
            uint32_t a[4];
            ml_ldmatrix4(a, &x[at][row][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < COLS / 8; j++)
                ml_mma(acc[j], a, pair(at, j * 8 + lane / 4, k + lane % 4 * 2),
                       pair(at, j * 8 + lane / 4, k + lane % 4 * 2 + 8));
        }
    }
};

/* The steps of LOW_DEEP numbers of all segments. */
struct low_steps {
    int64_t width, segment;
    int each, n;

    __device__ int64_t begin(int i) const {
        return i / each * segment + i % each * LOW_DEEP;
    }
    __device__ int64_t end(int i) const {
        int64_t e = (i / each + 1) * segment;
        return e < width ? e : width;
    }
};

__device__ static low_steps steps_of(const low_call &c) {
    low_steps s = { c.width, c.segment };

    s.each = (int)((c.segment + LOW_DEEP - 1) / LOW_DEEP);
    s.n = s.each * c.n_part;
    return s;
}

/* total += the product of the tile's rows and the matrix, a segment at a time. */
template <class W, int COLS, bool TRANS>
__device__ static void low_product(float (&total)[COLS / 8][4],
                                   low_tiles<W, COLS, TRANS> &t, const low_call &c,
                                   const low_matrix<W> &m, const low_steps &s, int64_t row0,
                                   int64_t n_row, int head, int64_t n0) {
    const int STAGES = low_tiles<W, COLS, TRANS>::stages;
    float acc[COLS / 8][4] = {};
    auto load = [&](int i) {
        if (i < s.n) {
            t.load_x(i % STAGES, c, row0, n_row, head, s.begin(i), s.end(i));
            t.load_w(i % STAGES, m, n0, s.begin(i), s.end(i));
        }
        ml_copy_commit();
    };

    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int i = 0; i < s.n; i++) {
        ml_copy_wait<STAGES - 2>();
        __syncthreads();
        load(i + STAGES - 1);
        t.multiply(acc, i % STAGES);
        if ((i + 1) % s.each)
            continue;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                total[j][e] += acc[j][e];
                acc[j][e] = 0.0f;
            }
    }
    ml_copy_wait<0>();
    __syncthreads();
}

template <int COLS>
__device__ static void put_low(const low_call &c, const float (&total)[COLS / 8][4],
                               const tile_rows<LOW_ROWS> &r, int lead, float scale,
                               int64_t row0, int head, int64_t n0) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int at = (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
        int64_t row = row0 + at;
        if (!r.is_alike(at, lead))
            continue;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            int64_t col = n0 + j * 8 + lane % 4 * 2;
            float v[2] = { total[j][2 * h], total[j][2 * h + 1] };
            if (col >= c.ld)
                continue;
            v[0] *= scale;
            v[1] *= scale;
            ml_store(c.low + (row * c.n_head + head) * c.ld + col, v);
        }
    }
}

template <class W, int COLS, bool TRANS>
__global__ void __launch_bounds__(LOW_THREADS, COLS > 32 ? 2 : 3)
    low_kernel(low_call c, row_map map, const __grid_constant__ sites s) {
    extern __shared__ __align__(16) char lora_smem[];
    low_tiles<W, COLS, TRANS> &t = *(low_tiles<W, COLS, TRANS> *)lora_smem;
    __shared__ tile_rows<LOW_ROWS> r;
    int64_t row0 = (int64_t)blockIdx.x * LOW_ROWS, n0 = (int64_t)blockIdx.y * COLS;
    int head = (int)blockIdx.z;
    low_steps steps = steps_of(c);

    ml_grid_release();
    ml_grid_wait();
    find_rows(r, map, s, row0, head, c.n_head);
    for (int i = 0; i < r.n_lead; i++) {
        int lead = r.lead[i];
        float total[COLS / 8][4] = {};
        const site &own = s.at[r.adapter[lead]];
        low_matrix<W> m = matrix_of<W>(own, r.group[lead], c.use_b, c.width, true, TRANS);
        low_product(total, t, c, m, steps, row0, map.n_row, head, n0);
        put_low<COLS>(c, total, r, lead, own.scale, row0, head, n0);
    }
}

/* ---- add ---- */

struct add_call {
    bf16 *y;         /* [n_row, n_head, width] */
    const bf16 *low; /* [n_row, n_head, ld] */
    int64_t width, ld;
    int n_head;
    bool use_b;
    bool set; /* y is written, not added to: every row has an adapter */
    drop_rule dropping;
};

enum { ADD_DEEP = 32, ADD_LD = ADD_DEEP + 8, ADD_TILES = 8 };

/* Columns are permuted within 32 of them, so that a lane's sums of four mma tiles are eight
 * neighbours: column 8 q + 2 j + e is column 2 q + e of tile j. */
__device__ static inline int permuted(int col) {
    return col / 32 * 32 + col % 8 / 2 * 8 + col % 32 / 8 * 2 + col % 2;
}

template <class W, int ROWS, int COLS, bool TRANS> struct add_tiles {
    static const int threads = ROWS * 2;
    static const int fours = COLS * ADD_DEEP / 4 / threads; /* of a thread */
    alignas(16) bf16 low[ROWS][ADD_LD];
    alignas(16) bf16 w[TRANS ? ADD_DEEP : COLS][TRANS ? COLS + 8 : ADD_LD];

    __device__ void load_low(const add_call &c, const tile_rows<ROWS> &r, int lead,
                             int64_t row0, int head, int64_t k0) {
        const int per_row = ADD_DEEP / 8;
        for (int e = (int)threadIdx.x; e < ROWS * per_row; e += threads) {
            int at = e / per_row, k = e % per_row * 8;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r.is_alike(at, lead))
                v = *(const uint4 *)(c.low + ((row0 + at) * c.n_head + head) * c.ld + k0 +
                                     k);
            *(uint4 *)&low[at][k] = v;
        }
    }

    __device__ static void load_w(four<W> (&v)[fours], const low_matrix<W> &m, int64_t n0,
                                  int64_t k0) {
        const int per_row = (TRANS ? COLS : ADD_DEEP) / 4;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            int e = i * threads + (int)threadIdx.x, r = e / per_row, c = e % per_row * 4;
            if (TRANS)
                v[i].load(m.w + (k0 + r) * m.n + n0 + c,
                          k0 + r < m.k_all ? m.n - n0 - c : 0, m.wide);
            else
                v[i].load(m.w + (n0 + r) * m.k_all + k0 + c,
                          n0 + r < m.n ? m.k_all - k0 - c : 0, m.wide);
        }
    }

    __device__ void store_w(const four<W> (&v)[fours]) {
        const int per_row = (TRANS ? COLS : ADD_DEEP) / 4;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            int e = i * threads + (int)threadIdx.x, r = e / per_row, c = e % per_row * 4;
            uint2 both = v[i].rounded();
            if (TRANS) {
                *(uint32_t *)&w[r][permuted(c)] = both.x;
                *(uint32_t *)&w[r][permuted(c + 2)] = both.y;
            } else {
                *(uint2 *)&w[permuted(r)][c] = both;
            }
        }
    }

    __device__ void multiply(float (&acc)[COLS / 8][4]) const {
        int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
        for (int k = 0; k < ADD_DEEP; k += 16) {
            uint32_t a[4], b[4];
            ml_ldmatrix4(a, &low[row][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < COLS / 8; j += 2) {
                if (TRANS)
                    ml_ldmatrix4_trans(b, &w[k + lane % 16][j * 8 + lane / 16 * 8]);
                else
                    ml_ldmatrix4(
                        b, &w[j * 8 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
                ml_mma(acc[j], a, b[0], b[1]);
                ml_mma(acc[j + 1], a, b[2], b[3]);
            }
        }
    }
};

/* A lane's numbers of y: eight neighbours of two rows, in each of the groups of 32 columns. */
template <int ROWS, int COLS> struct add_outputs {
    uint4 y[COLS / 32][2];
    bool there[COLS / 32][2];

    __device__ static int row_of(int h) {
        return (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * h;
    }

    __device__ static int64_t at(const add_call &c, int64_t row, int head, int64_t col) {
        return (row * c.n_head + head) * c.width + col;
    }

    __device__ void load(const add_call &c, const tile_rows<ROWS> &r, int lead,
                         int64_t row0, int head, int64_t n0, int64_t end) {
#pragma unroll
        for (int g = 0; g < COLS / 32; g++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int64_t col = n0 + g * 32 + threadIdx.x % 4 * 8;
                there[g][h] = r.is_alike(row_of(h), lead) && col < end;
                y[g][h] = make_uint4(0, 0, 0, 0);
                if (there[g][h] && !c.set)
                    y[g][h] = *(const uint4 *)(c.y + at(c, row0 + row_of(h), head, col));
            }
    }

    /* DROP: masks what is added. */
    template <bool DROP>
    __device__ void store(const add_call &c, const row_map &m, int64_t row0, int head,
                          int64_t n0, const float (&acc)[COLS / 8][4]) {
#pragma unroll
        for (int g = 0; g < COLS / 32; g++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int64_t col = n0 + g * 32 + threadIdx.x % 4 * 8, row = row0 + row_of(h);
                uint32_t old[4] = { y[g][h].x, y[g][h].y, y[g][h].z, y[g][h].w };
                if (!there[g][h])
                    continue;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float v[2] = { acc[g * 4 + j][2 * h], acc[g * 4 + j][2 * h + 1] };
                    if (DROP)
                        for (int e = 0; e < 2; e++)
                            v[e] = drop(m, c.dropping, row, expert_of(m, row),
                                        head * c.width + col + 2 * j + e, v[e]);
                    old[j] = ml_pack2(__uint_as_float(old[j] << 16) + v[0],
                                      __uint_as_float(old[j] & 0xffff0000u) + v[1]);
                }
                *(uint4 *)(c.y + at(c, row, head, col)) =
                    make_uint4(old[0], old[1], old[2], old[3]);
            }
    }
};

/* Adds to the columns n0 .. end - 1.  While a tile of them is computed, the numbers of the next are
 * on their way to registers. */
template <bool DROP, class W, int ROWS, int COLS, bool TRANS>
__device__ static void add_tiles_of(const add_call &c, const row_map &map, const site &own,
                                    const tile_rows<ROWS> &r, int lead, int64_t row0,
                                    int head, int64_t n0, int64_t end,
                                    add_tiles<W, ROWS, COLS, TRANS> &t) {
    low_matrix<W> m = matrix_of<W>(own, r.group[lead], c.use_b, c.width, false, TRANS);
    add_outputs<ROWS, COLS> out, next;
    four<W> v[add_tiles<W, ROWS, COLS, TRANS>::fours];
    bool one = own.rank <= ADD_DEEP; /* low stays in shared memory */

    out.load(c, r, lead, row0, head, n0, end);
    t.load_w(v, m, n0, 0);
    if (one)
        t.load_low(c, r, lead, row0, head, 0);
    for (; n0 < end; n0 += COLS) {
        float acc[COLS / 8][4] = {};
        next.load(c, r, lead, row0, head, n0 + COLS, end);
        for (int64_t k0 = 0; k0 < own.rank; k0 += ADD_DEEP) {
            bool last = k0 + ADD_DEEP >= own.rank;
            t.store_w(v);
            if (!one)
                t.load_low(c, r, lead, row0, head, k0);
            __syncthreads();
            t.load_w(v, m, last ? n0 + COLS : n0, last ? 0 : k0 + ADD_DEEP);
            t.multiply(acc);
            __syncthreads();
        }
        out.template store<DROP>(c, map, row0, head, n0, acc);
        out = next;
    }
}

template <class W, int ROWS, int COLS, bool TRANS, bool DROP>
__global__ void __launch_bounds__(ROWS * 2, 256 / ROWS)
    add_kernel(add_call c, row_map map, const __grid_constant__ sites s) {
    __shared__ add_tiles<W, ROWS, COLS, TRANS> t;
    __shared__ tile_rows<ROWS> r;
    const int each = ADD_TILES * COLS;
    int64_t n0 = (int64_t)blockIdx.x * each, row0 = (int64_t)blockIdx.y * ROWS;
    int64_t end = n0 + each < c.width ? n0 + each : c.width;
    int head = (int)blockIdx.z;

    ml_grid_release();
    ml_grid_wait();
    find_rows(r, map, s, row0, head, c.n_head);
    for (int i = 0; i < r.n_lead; i++) {
        int lead = r.lead[i];
        add_tiles_of<DROP>(c, map, s.at[r.adapter[lead]], r, lead, row0, head, n0, end, t);
    }
}

/* ---- gradients ---- */

/* The rows of an adapter in order, for each expert or all: list [n_row], at the expert's first
 * row, and their number. */
__global__ static void list_kernel(int32_t *list, int32_t *count, row_map m, int adapter) {
    __shared__ int warps[32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first = m.start ? m.start[blockIdx.x] : 0;
    int64_t end = m.start ? m.start[blockIdx.x + 1] : m.n_row;
    int n = 0;

    for (int64_t base = first; base < end; base += blockDim.x) {
        int64_t row = base + threadIdx.x;
        bool own = row < end && adapter_of(m, row) == adapter;
        unsigned ballot = __ballot_sync(0xffffffffu, own);
        int before = __popc(ballot & ((1u << lane) - 1)), all = 0;
        if (lane == 0)
            warps[warp] = __popc(ballot);
        __syncthreads();
        for (int i = 0; i < (int)blockDim.x / 32; i++) {
            before += i < warp ? warps[i] : 0;
            all += warps[i];
        }
        if (own)
            list[first + n + before] = (int32_t)row;
        n += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        count[blockIdx.x] = n;
}

/* dw [groups, rank, width], or [groups, width, rank] (by_width) += the sums over the rows of an
 * adapter of low(row, rank) wide(row, width). */
struct gradient_call {
    float *dw, *part;     /* part: [chunks, elements of dw]; NULL: blocks have all rows */
    const bf16 *wide;     /* [n_row, n_head, width] */
    const bf16 *low;      /* [n_row, n_head, ld] */
    const int32_t *list;  /* see list_kernel; NULL: all rows */
    const int32_t *count; /* [experts] */
    const int32_t *start; /* MoE: the table of experts' rows, or NULL */
    int64_t n_row, width, ld;
    int rank, n_head;
    bool by_width;
};

enum { GRAD_WIDE = 128, GRAD_ROWS = 32, GRAD_THREADS = 128 };

template <int COLS> struct gradient_tiles {
    static const int stages = COLS > 32 ? 3 : 4;
    alignas(16) bf16 wide[stages][GRAD_ROWS][GRAD_WIDE + 8];
    alignas(16) bf16 low[stages][GRAD_ROWS][COLS + 8];

    /* Rows `at`.. of those that the adapter has in the group, of which there are n. */
    __device__ void load(int stage, const gradient_call &c, int64_t first, int64_t at,
                         int64_t n, int head, int64_t w0, int64_t r0) {
        copy<GRAD_WIDE>(&wide[stage][0][0], c.wide, c.width, c, first, at, n, head, w0);
        copy<COLS>(&low[stage][0][0], c.low, c.ld, c, first, at, n, head, r0);
    }

    template <int N>
    __device__ static void copy(bf16 *to, const bf16 *from, int64_t ld,
                                const gradient_call &c, int64_t first, int64_t at,
                                int64_t n, int head, int64_t col0) {
#pragma unroll
        for (int i = 0; i < GRAD_ROWS * N / 8 / GRAD_THREADS; i++) {
            int e = i * GRAD_THREADS + (int)threadIdx.x, r = e / (N / 8),
                k = e % (N / 8) * 8;
            bool there = at + r < n && col0 + k < ld;
            int64_t row = there ? first + at + r : 0;
            if (there && c.list)
                row = c.list[row];
            ml_copy_async(to + r * (N + 8) + k,
                          there ? from + (row * c.n_head + head) * ld + col0 + k : from,
                          there);
        }
    }

    __device__ void multiply(float (&acc)[2][COLS / 8][4], int stage) const {
        int lane = (int)threadIdx.x % 32, col = (int)threadIdx.x / 32 * 32;
#pragma unroll
        for (int k = 0; k < GRAD_ROWS; k += 16) {
            uint32_t a[2][4], b[4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                ml_ldmatrix4_trans(a[i], &wide[stage][k + lane / 16 * 8 + lane % 8]
                                              [col + i * 16 + lane / 8 % 2 * 8]);
#pragma unroll
            for (int j = 0; j < COLS / 8; j += 2) {
                ml_ldmatrix4_trans(b, &low[stage][k + lane % 16][j * 8 + lane / 16 * 8]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    ml_mma(acc[i][j], a[i], b[0], b[1]);
                    ml_mma(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
};

template <int COLS>
__device__ static void put_gradient(const gradient_call &c, int64_t group, int chunk,
                                    int64_t w0, int64_t r0,
                                    const float (&acc)[2][COLS / 8][4]) {
    int64_t each = c.rank * c.width;
    float *to = c.part ? c.part + chunk * each : c.dw + group * each;
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t w = w0 + threadIdx.x / 32 * 32 + i * 16 + lane / 4 + e / 2 * 8;
                int64_t r = r0 + j * 8 + lane % 4 * 2 + e % 2;
                int64_t at = c.by_width ? w * c.rank + r : r * c.width + w;
                if (w < c.width && r < c.rank)
                    to[at] = c.part ? acc[i][j][e] : to[at] + acc[i][j][e];
            }
}

template <int COLS>
__global__ void __launch_bounds__(GRAD_THREADS) gradient_kernel(gradient_call c) {
    const int STAGES = gradient_tiles<COLS>::stages;
    __shared__ gradient_tiles<COLS> t;
    int64_t w0 = (int64_t)blockIdx.x * GRAD_WIDE, r0 = (int64_t)blockIdx.y * COLS;
    int group = c.part ? 0 : (int)blockIdx.z, chunk = c.part ? (int)blockIdx.z : 0;
    int head = c.n_head > 1 ? group : 0;
    int64_t first = c.start ? c.start[group] : 0;
    int64_t n = c.list    ? c.count[c.start ? group : 0]
                : c.start ? c.start[group + 1] - first
                          : c.n_row;
    int64_t from = c.part ? (int64_t)chunk * ML_LORA_CHUNK : 0;
    float acc[2][COLS / 8][4] = {};

    if (from >= n)
        return;
    n = c.part && n - from > ML_LORA_CHUNK ? from + ML_LORA_CHUNK : n;
    for (int i = 0; i < STAGES - 1; i++) {
        t.load(i, c, first, from + i * GRAD_ROWS, n, head, w0, r0);
        ml_copy_commit();
    }
    for (int64_t at = from, i = 0; at < n; at += GRAD_ROWS, i++) {
        ml_copy_wait<STAGES - 2>();
        __syncthreads();
        t.load((int)((i + STAGES - 1) % STAGES), c, first, at + (STAGES - 1) * GRAD_ROWS, n,
               head, w0, r0);
        ml_copy_commit();
        t.multiply(acc, (int)(i % STAGES));
    }
    put_gradient<COLS>(c, group, chunk, w0, r0, acc);
}

/* dw += the parts of the chunks that the adapter has rows of, in order. */
__global__ static void add_chunks_kernel(gradient_call c) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, each = c.rank * c.width;
    int64_t n = c.list ? *c.count : c.n_row;
    float sum = 0.0f;

    if (i >= each || !n)
        return;
    for (int64_t k = 0; k * ML_LORA_CHUNK < n; k++)
        sum += c.part[k * each + i];
    c.dw[i] += sum;
}

/* ---- the op ---- */

/* A call with its scratch memory. */
struct mma_lora : lora_call {
    int64_t ld;
    bf16 *low, *dlow, *kept;
    int32_t *list;
    float *part;

    mma_lora(const lora_call &l) : lora_call(l) {
        ml_lora_scratch at = ml_cuda_lora_mma_scratch(a);
        char *base = (char *)a->scratch;

        ld = at.ld;
        low = (bf16 *)base;
        dlow = (bf16 *)(base + at.dlow);
        list = (int32_t *)(base + at.list);
        part = (float *)(base + at.part);
        kept = dropped ? (bf16 *)(base + at.kept) : NULL;
    }
};

template <class W> static const ml_dtype type_of = ML_F32;
template <> const ml_dtype type_of<bf16> = ML_BF16;

template <class W, int COLS, bool TRANS>
static void run_low(const mma_lora &l, const low_call &c) {
    const size_t bytes = sizeof(low_tiles<W, COLS, TRANS>);
    dim3 grid(ml_cuda_blocks(l.map.n_row, LOW_ROWS), ml_cuda_blocks(l.ld, COLS),
              (unsigned)l.n_head);

    ml_cuda_note(l.s,
                 cudaFuncSetAttribute(low_kernel<W, COLS, TRANS>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "lora");
    for (int first = 0; first < l.a->lora->n_adapter; first += ADAPTERS)
        ml_cuda_launch(l.s, "lora", low_kernel<W, COLS, TRANS>, grid, LOW_THREADS, bytes, c,
                       l.map, lora_sites(l.a, first, type_of<W>));
}

template <class W> static void run_low_of(const mma_lora &l, const low_call &c) {
    if (!lora_has(l.a, type_of<W>))
        return;
    if (l.ld > 32 && c.use_b)
        run_low<W, 64, true>(l, c);
    else if (l.ld > 32)
        run_low<W, 64, false>(l, c);
    else if (c.use_b)
        run_low<W, 32, true>(l, c);
    else
        run_low<W, 32, false>(l, c);
}

/* low = scale A x, or scale B' x; of gradients: scale B' dz, or scale A dz. */
static void make_low(const mma_lora &l, bf16 *low, const bf16 *x, int64_t width,
                     bool use_b) {
    low_call c = {};

    c.x = x;
    c.low = low;
    c.width = width;
    c.ld = l.ld;
    c.n_head = l.n_head;
    c.segment = l.n_head > 1 ? width : ml_cuda_lora_segment(width);
    c.n_part = l.n_head > 1 ? 1 : (int)ml_cuda_lora_parts(width);
    c.use_b = use_b;
    run_low_of<float>(l, c);
    run_low_of<bf16>(l, c);
}

template <class W, bool TRANS, bool DROP>
static void run_add(const mma_lora &l, const add_call &c) {
    const int rows = 128, cols = 64;
    dim3 grid(ml_cuda_blocks(c.width, ADD_TILES * cols), ml_cuda_blocks(l.map.n_row, rows),
              (unsigned)l.n_head);

    for (int first = 0; first < l.a->lora->n_adapter; first += ADAPTERS)
        ml_cuda_launch(l.s, "lora", add_kernel<W, rows, cols, TRANS, DROP>, grid, rows * 2,
                       0, c, l.map, lora_sites(l.a, first, type_of<W>));
}

template <class W>
static void run_add_of(const mma_lora &l, const add_call &c, bool masked) {
    if (!lora_has(l.a, type_of<W>))
        return;
    if (c.use_b)
        run_add<W, false, false>(l, c);
    else if (masked)
        run_add<W, true, true>(l, c);
    else
        run_add<W, true, false>(l, c);
}

/* y += B low, or A' low; masked: with dropout, which adapters of absorbed weights do not have. */
static void add_low(const mma_lora &l, add_call c, bool masked) {
    c.ld = l.ld;
    c.n_head = l.n_head;
    c.dropping = l.dropping;
    run_add_of<float>(l, c, masked);
    run_add_of<bf16>(l, c, masked);
}

__global__ static void keep_kernel(bf16 *y, const bf16 *x, row_map m, drop_rule d,
                                   int64_t width) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / width;

    if (i < m.n_row * width)
        y[i] = ml_as<bf16>(drop(m, d, row, expert_of(m, row), i % width, ml_f32(x[i])));
}

/* The inputs of the adapters. */
static const bf16 *inputs(const mma_lora &l) {
    const bf16 *x = (const bf16 *)l.a->in[0].data;
    int64_t width = l.n_head * l.n_in;
    const int threads = 256;

    if (!l.kept)
        return x;
    keep_kernel<<<ml_cuda_blocks(l.map.n_row * width, threads), threads, 0, l.s->stream>>>(
        l.kept, x, l.map, l.dropping, width);
    ml_cuda_launched(l.s, "lora");
    return l.kept;
}

void lora_mma_forward(const lora_call &call) {
    mma_lora l(call);
    bool swapped = l.a->attr->lora.transposed;
    add_call c = {};

    make_low(l, l.low, inputs(l), l.n_in, swapped);
    c.y = (bf16 *)l.a->out[0].data;
    c.low = l.low;
    c.width = l.n_out;
    c.use_b = !swapped;
    add_low(l, c, false);
}

static void run_gradient(const mma_lora &l, gradient_call c, int64_t n_adapter_rows) {
    int64_t chunks = (n_adapter_rows + ML_LORA_CHUNK - 1) / ML_LORA_CHUNK;
    const int threads = 256;
    dim3 grid(ml_cuda_blocks(c.width, GRAD_WIDE),
              ml_cuda_blocks(c.rank, l.ld > 32 ? 64 : 32),
              (unsigned)(l.n_group == 1 ? chunks : l.n_group));

    c.part = l.n_group == 1 && chunks > 1 ? l.part : NULL;
    if (l.ld > 32)
        gradient_kernel<64><<<grid, GRAD_THREADS, 0, l.s->stream>>>(c);
    else
        gradient_kernel<32><<<grid, GRAD_THREADS, 0, l.s->stream>>>(c);
    if (c.part)
        add_chunks_kernel<<<ml_cuda_blocks(c.rank * c.width, threads), threads, 0,
                            l.s->stream>>>(c);
    ml_cuda_launched(l.s, "lora gradient");
}

/* dw += of one adapter; by_width: dw is [width, rank]. */
static void add_gradient(const mma_lora &l, const ml_tensor *dw, const bf16 *wide,
                         const bf16 *low, bool by_width) {
    gradient_call c = {};

    if (!dw->data)
        return;
    c.dw = (float *)dw->data;
    c.wide = wide;
    c.low = low;
    c.list = l.map.adapter ? l.list : NULL;
    c.count = l.list + l.map.n_row;
    c.start = l.map.start;
    c.n_row = l.map.n_row;
    c.rank = (int)dw->shape[by_width ? 2 : 1];
    c.width = dw->shape[by_width ? 1 : 2];
    c.ld = l.ld;
    c.n_head = l.n_head;
    c.by_width = by_width;
    run_gradient(l, c, l.map.n_row);
}

static void add_gradients(const mma_lora &l, const bf16 *x) {
    const bf16 *dz = (const bf16 *)l.a->dout[0].data;
    const int threads = 1024;

    for (int i = 0; i < l.a->lora->n_adapter; i++) {
        const ml_lora_site *site = site_of(l.a, i);
        if (!site || (!site->da.data && !site->db.data))
            continue;
        if (l.map.adapter)
            list_kernel<<<l.map.start ? (unsigned)l.map.n_expert : 1, threads, 0,
                          l.s->stream>>>(l.list, l.list + l.map.n_row, l.map, i);
        if (l.a->attr->lora.transposed) {
            add_gradient(l, &site->da, dz, l.low, false);
            add_gradient(l, &site->db, x, l.dlow, true);
        } else {
            add_gradient(l, &site->da, x, l.dlow, false);
            add_gradient(l, &site->db, dz, l.low, true);
        }
    }
}

/* dx += A' dlow; where every row has an adapter and nothing is there yet, dx is written. */
static void add_dx(const mma_lora &l) {
    const ml_tensor *dx = &l.a->din[0];
    add_call c = {};

    c.set = !l.a->din_add[0] && !l.map.adapter && site_of(l.a, 0);
    if (!l.a->din_add[0] && !c.set)
        ml_cuda_note(l.s, cudaMemsetAsync(dx->data, 0, ml_tensor_bytes(dx), l.s->stream),
                     "lora backward");
    c.y = (bf16 *)dx->data;
    c.low = l.dlow;
    c.width = l.n_in;
    c.use_b = l.a->attr->lora.transposed;
    add_low(l, c, l.kept != NULL);
}

void lora_mma_backward(const lora_call &call) {
    mma_lora l(call);
    bool swapped = l.a->attr->lora.transposed;
    const bf16 *x = inputs(l);

    make_low(l, l.low, x, l.n_in, swapped);
    make_low(l, l.dlow, (const bf16 *)l.a->dout[0].data, l.n_out, !swapped);
    if (l.a->din[0].data)
        add_dx(l);
    add_gradients(l, x);
}
