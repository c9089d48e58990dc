/* lora_decode.cu - LORA of few rows in bf16, for all linear layers of one input.
 *
 * A decode step reads every adapter of its batch once, so its time is the bytes of the adapters
 * and the latency of the kernels.  Layers that read the same rows (q, k and v; gate and up) share
 * two kernels:
 *
 *     low   a part of u = A x for each adapter and segment of the width: a block has the matrices
 *           of all layers for its segment in shared memory
 *     add   z = y + B u', u' = scale times the sum of the parts, in order: B streams through the
 *           shared memory of blocks, 256 rows at a time.  Gate and up: the same rows of both, and
 *           GLU of the sums
 *
 * Blocks find the rows of their adapter and begin to copy its matrices before the kernel in front
 * of them has ended (PDL): the lists of rows are written by a copy before the first kernel of a step.
 * So low comes before the GEMM of the layers, while a norm or a GLU runs that reads little memory.
 * The GEMM does not read what low writes: in a CUDA graph it begins when low has its rows of x,
 * which the kernel before wrote, and add begins when the last blocks of the GEMM have.
 * A product of rows is done for eight of them at a time, which are gathered: rows of other
 * adapters cost nothing.  Chains and roundings are those of lora_mma.cu. */
#include "backend/cuda/glu.cuh"
#include "backend/cuda/graph_edges.cuh"
#include "backend/cuda/lora_decode.cuh"
#include "backend/cuda/mma.cuh"

#include <string.h>

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    TILE = 8,     /* rows of x at a time */
    DEEP = 32,    /* columns of a product per step: two mma */
    COLS = 256,   /* of z at a time, 32 for each warp */
    BLOCKS = 256, /* of add: as many as have room at once */
    FEW_ADAPTERS = 16,
    DIVIDED = 16, /* adapters, or blocks that divide the rows of one */
    MOST_SMEM = 200 * 1024,
    OLDER_SMEM = 96 * 1024 /* of cards before sm_90 */
};

struct decode_site {
    const void *a, *b; /* a NULL: the layer is not adapted */
    float scale;
    int rank;
};

/* The adapters of the layers of a call.  Arguments of a kernel take time to arrive: there are
 * kernels for few adapters, and for more. */
template <int MOST> struct decode_sites { decode_site at[MOST][ML_LORA_LAYERS]; };

/* What differs between the layers. */
struct decode_layer {
    const bf16 *y;
    bf16 *z;
    int64_t y_ld, z_ld, width;
    int first_run; /* of tiles, among those of all layers */
};

struct decode_call {
    const bf16 *x;       /* [n_row, width] */
    float *part;         /* [n_part, n_row, n_layer LD] */
    int64_t width, each; /* columns of x, and of a part */
    int n_part, n_layer, n_adapter;
    int tiles;   /* of COLS columns, of a block of add */
    bool copies; /* z is not the memory of y: rows without an adapter are copied */
    ml_act act;  /* GLU of two layers, into layer[0].z */
    float limit;
    decode_layer layer[ML_LORA_LAYERS];
};

/* ---- matrices in shared memory, f32 or bf16 ---- */

/* Between rows, in numbers: fragments of eight rows are in different banks. */
__host__ __device__ static inline int64_t stride_of(int64_t width) {
    return (width + DEEP - 1) / DEEP * DEEP + 8;
}

/* A row of n numbers, and zeros up to a multiple of DEEP. */
template <class W>
__device__ static inline void copy_sixteen(W *to, const W *from, int64_t n) {
    const int each = 16 / (int)sizeof(W);

    if ((uintptr_t)from % 16 == 0 && (n <= 0 || n >= each)) {
        ml_copy_async(to, from, n > 0);
        return;
    }
    for (int i = 0; i < each; i++)
        to[i] = i < n ? from[i] : ml_as<W>(0.0f);
}

/* B fragments of eight rows of a matrix, at column k: two steps of 16. */
__device__ static inline void load_fragments(uint32_t (&b)[4], const bf16 *rows, int64_t ld,
                                             int64_t k) {
    int lane = (int)threadIdx.x % 32;
    ml_ldmatrix4(b, rows + lane % 8 * ld + k + lane / 8 * 8);
}

__device__ static inline void load_fragments(uint32_t (&b)[4], const float *rows,
                                             int64_t ld, int64_t k) {
    int lane = (int)threadIdx.x % 32;
    const float *from = rows + lane / 4 * ld + k + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = *(const float2 *)(from + 8 * i);
        b[i] = ml_pack2(v.x, v.y);
    }
}

/* acc += eight rows of x, times eight rows of a matrix, over n columns: one chain. */
template <class W>
__device__ static inline void multiply(float (&acc)[4], const bf16 *x, int64_t x_ld,
                                       const W *w, int64_t w_ld, int n) {
#pragma unroll 4
    for (int k = 0; k < n; k += DEEP) {
        uint32_t rows[4], b[4];
        load_fragments(rows, x, x_ld, k);
        load_fragments(b, w, w_ld, k);
        ml_mma(acc, { rows[0], 0, rows[1], 0 }, b[0], b[1]);
        ml_mma(acc, { rows[2], 0, rows[3], 0 }, b[2], b[3]);
    }
}

/* ---- rows ---- */

/* Some of the rows; `at` NULL: all of them. */
struct row_list {
    const int32_t *at;
    int n;

    __device__ int64_t operator[](int i) const {
        return at ? at[i] : i;
    }
};

/* List 0 has the rows without an adapter, list a + 1 those of adapter a. */
__device__ static row_list rows_of(const row_map &m, int list) {
    if (!m.lists)
        return { NULL, m.all && list == 1 ? (int)m.n_row : 0 };
    return { m.lists + ML_ADAPTER_LISTS + 1 + m.lists[list],
             m.lists[list + 1] - m.lists[list] };
}

/* The row of a lane: first + lane / 4; -1: there is none. */
__device__ static int64_t lane_row(const row_list &r, int first) {
    int i = first + (int)threadIdx.x % 32 / 4;
    return i < r.n ? r[i] : -1;
}

/* ---- low ---- */

/* A warp copies a row. */
template <class W, int LD>
__device__ static void copy_a(W *to, int64_t ld, const decode_call &c,
                              const decode_site (&site)[ML_LORA_LAYERS], int64_t from,
                              int n) {
    const int each = 16 / (int)sizeof(W);
    int end = (n + DEEP - 1) / DEEP * DEEP;

    for (int row = (int)threadIdx.x / 32; row < c.n_layer * LD; row += WARPS) {
        const decode_site &s = site[row / LD];
        bool there = s.a && row % LD < s.rank;
        const W *a = there ? (const W *)s.a + row % LD * c.width + from : (const W *)c.x;
        for (int k = (int)threadIdx.x % 32 * each; k < end; k += 32 * each)
            copy_sixteen(to + row * ld + k, there ? a + k : a, there ? n - k : 0);
    }
    ml_copy_commit();
}

/* Eight rows, of lanes. */
__device__ static void copy_x(bf16 *to, int64_t ld, const decode_call &c, int64_t of_lane,
                              int64_t from, int n) {
    int warp = (int)threadIdx.x / 32, end = (n + DEEP - 1) / DEEP * DEEP;
    int64_t row = __shfl_sync(0xffffffffu, of_lane, 4 * warp);
    bool own = row >= 0;
    const bf16 *x = own ? c.x + row * c.width + from : c.x;

    static_assert(WARPS == TILE, "a warp copies a row");
    for (int k = (int)threadIdx.x % 32 * 8; k < end; k += 32 * 8)
        ml_copy_async(to + warp * ld + k, own && k < n ? x + k : c.x, own && k < n);
    ml_copy_commit();
}

template <class W, int LD, int MOST>
__global__ void __launch_bounds__(THREADS)
    decode_low_kernel(const __grid_constant__ decode_call c,
                      const __grid_constant__ decode_sites<MOST> s, row_map m) {
    extern __shared__ __align__(16) char lora_smem[];
    int lane = (int)threadIdx.x % 32, adapter = (int)blockIdx.z;
    int first = (int)blockIdx.y * TILE;
    int64_t from = (int64_t)blockIdx.x * c.each;
    int n = (int)(c.width - from < c.each ? c.width - from : c.each);
    int64_t w_ld = stride_of(c.each), x_ld = stride_of(c.each);
    int width = c.n_layer * LD;
    W *w = (W *)lora_smem;
    bf16 *x = (bf16 *)(w + width * w_ld);
    row_list r;
    int64_t row;

    r = rows_of(m, adapter + 1);
    if (first < r.n)
        copy_a<W, LD>(w, w_ld, c, s.at[adapter], from, n);
    row = lane_row(r, first);
    ml_grid_wait();
    ml_grid_release(); /* not earlier: a GEMM that does not wait reads x */
    for (; first < r.n; first += (int)gridDim.y * TILE, row = lane_row(r, first)) {
        copy_x(x, x_ld, c, row, from, n);
        ml_copy_wait<0>();
        __syncthreads();
        for (int tile = (int)threadIdx.x / 32; tile < width / 8; tile += WARPS) {
            float acc[4] = {};
            multiply(acc, x, x_ld, w + tile * 8 * w_ld, w_ld, n);
            if (row >= 0) {
                float *to = c.part + ((int64_t)blockIdx.x * m.n_row + row) * width;
                *(float2 *)(to + tile * 8 + lane % 4 * 2) = make_float2(acc[0], acc[1]);
            }
        }
        __syncthreads();
    }
}

/* ---- add ---- */

/* Rows of B are permuted within 32 of them, so that a lane's sums of four mma tiles are eight
 * neighbours: row 8 q + 2 j + e is column 2 q + e of tile j. */
__device__ static inline int permuted(int row) {
    return row / 32 * 32 + row % 8 / 2 * 8 + row % 32 / 8 * 2 + row % 2;
}

/* Rows [from, from + COLS) of B, of which `end` are there. */
template <class W, int LD>
__device__ static void copy_b(W *to, int64_t ld, const decode_site &s, int64_t from,
                              int64_t end) {
    const int each = 16 / (int)sizeof(W), per_row = LD / each;

#pragma unroll 4
    for (int e = (int)threadIdx.x; e < COLS * per_row; e += THREADS) {
        int row = e / per_row, k = e % per_row * each;
        bool there = from + row < end && k < s.rank;
        const W *b = (const W *)s.b + (there ? (from + row) * s.rank + k : 0);
        copy_sixteen(to + permuted(row) * ld + k, b, there ? s.rank - k : 0);
    }
}

/* u' of eight rows for some layers: the sums of their parts in order, times the scale. */
template <int LD, int LAYERS>
__device__ static void sum_low(bf16 *low, const decode_call &c, const decode_site *site,
                               int64_t of_lane, int64_t all_rows, int layer) {
    const int each = LAYERS * TILE * LD / THREADS;
    int width = c.n_layer * LD;
    float v[each][ML_LORA_PARTS];

#pragma unroll
    for (int i = 0; i < each; i++) {
        int e = i * THREADS + (int)threadIdx.x;
        int64_t row = __shfl_sync(0xffffffffu, of_lane, e / LD % TILE * 4);
        bool there = row >= 0;
        const float *from =
            c.part + (there ? row : 0) * width + (layer + e / (TILE * LD)) * LD + e % LD;
#pragma unroll
        for (int p = 0; p < ML_LORA_PARTS; p++)
            v[i][p] = there && p < c.n_part ? from[p * all_rows * width] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < each; i++) {
        int e = i * THREADS + (int)threadIdx.x;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < ML_LORA_PARTS; p++)
            sum += v[i][p];
        low[e / LD * stride_of(LD) + e % LD] =
            __float2bfloat16(sum * site[e / (TILE * LD)].scale);
    }
}

/* Eight neighbours of a row. */
struct eight {
    uint32_t v[4];

    __device__ void load(const bf16 *from, bool there) {
        uint4 u = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        v[0] = u.x;
        v[1] = u.y;
        v[2] = u.z;
        v[3] = u.w;
    }
    __device__ void store(bf16 *to) const {
        *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
    }
    /* Adds to the numbers 2 j and 2 j + 1. */
    __device__ void add(int j, float lo, float hi) {
        v[j] = ml_pack2(__uint_as_float(v[j] << 16) + lo,
                        __uint_as_float(v[j] & 0xffff0000u) + hi);
    }
    __device__ void gate(const eight &up, ml_act act, float limit) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            ml_gate lo = ml_gate_of(__uint_as_float(v[j] << 16),
                                    __uint_as_float(up.v[j] << 16), act, limit);
            ml_gate hi = ml_gate_of(__uint_as_float(v[j] & 0xffff0000u),
                                    __uint_as_float(up.v[j] & 0xffff0000u), act, limit);
            v[j] = ml_pack2(lo.act * lo.up, hi.act * hi.up);
        }
    }
};

/* Every step-th row from `first` on: z = y, or GLU of both. */
template <bool GLU>
__device__ static void copy_rows(const decode_call &c, int layer, const row_list &r,
                                 int first, int step, int64_t from, int64_t end) {
    const decode_layer &l = c.layer[layer];
    int per_row = (int)(end - from) / 8, n_row = (r.n - first + step - 1) / step;

    for (int e = (int)threadIdx.x; e < n_row * per_row; e += THREADS) {
        int64_t row = r[first + e / per_row * step], col = from + e % per_row * 8;
        eight y, up;
        y.load(l.y + row * l.y_ld + col, true);
        if (GLU) {
            up.load(c.layer[1].y + row * l.y_ld + col, true);
            y.gate(up, c.act, c.limit);
        }
        y.store(l.z + row * l.z_ld + col);
    }
}

/* y += u' B' for the 32 columns of a warp, of which a lane has eight. */
template <class W, int LD>
__device__ static void add_columns(eight &y, const bf16 *low, const W *b, int64_t b_ld) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float acc[4] = {};
        multiply(acc, low, stride_of(LD), b + j * 8 * b_ld, b_ld, LD);
        y.add(j, acc[0], acc[1]);
    }
}

/* The adapter of a block, its layers, and its columns [from, end). */
template <class W, int LD, bool GLU> struct add_block {
    static const int layers = GLU ? 2 : 1, stages = GLU ? 2 : 4;
    static const int64_t tile_size = COLS * (LD + 8);
    const decode_call &c;
    const decode_site *site; /* [layers] */
    int layer;
    int64_t from, end;
    W *ring;   /* [stages][layers] tiles of B */
    bf16 *low; /* [layers] tiles of u' */

    __device__ int tiles() const {
        return (int)((end - from + COLS - 1) / COLS);
    }
    __device__ W *tile(int i, int j) const {
        return ring + (i % stages * layers + j) * tile_size;
    }
    __device__ void copy(int i) const {
        for (int j = 0; j < layers && i < tiles(); j++)
            copy_b<W, LD>(tile(i, j), LD + 8, site[j], from + i * COLS, end);
        ml_copy_commit();
    }
    __device__ void load(eight (&y)[layers], int i, int64_t row, bool there) const {
        int64_t col = from + i * COLS + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
#pragma unroll
        for (int j = 0; j < layers; j++) {
            const decode_layer &l = c.layer[layer + j];
            y[j].load(l.y + row * l.y_ld + col, there && col < end);
        }
    }
    __device__ void store(const eight &y, int i, int64_t row, bool there) const {
        int64_t col = from + i * COLS + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
        if (there && col < end)
            y.store(c.layer[layer].z + row * c.layer[layer].z_ld + col);
    }
    __device__ void add(eight (&y)[layers], int i) const {
#pragma unroll
        for (int j = 0; j < layers; j++)
            add_columns<W, LD>(y[j], low + j * TILE * stride_of(LD),
                               tile(i, j) + threadIdx.x / 32 * 32 * (LD + 8), LD + 8);
        if (GLU)
            y[0].gate(y[layers - 1], c.act, c.limit);
    }

    /* Eight rows.  The copies of the first tiles have begun. */
    __device__ void run(int64_t row, int64_t all_rows) const {
        bool there = row >= 0;
        eight y[layers], next[layers];

        load(y, 0, row, there);
        sum_low<LD, layers>(low, c, site, row, all_rows, layer);
        for (int i = 0; i < tiles(); i++) {
            ml_copy_wait<stages - 2>();
            __syncthreads();
            copy(i + stages - 1);
            load(next, i + 1, row, there);
            add(y, i);
            store(y[0], i, row, there);
            for (int j = 0; j < layers; j++)
                y[j] = next[j];
        }
        __syncthreads();
    }
};

/* Rows without an adapter are divided among the blocks of all adapters. */
template <class W, int LD, int MOST, bool GLU>
__global__ void __launch_bounds__(THREADS)
    decode_add_kernel(const __grid_constant__ decode_call c,
                      const __grid_constant__ decode_sites<MOST> s, row_map m) {
    extern __shared__ __align__(16) char lora_smem[];
    typedef add_block<W, LD, GLU> block;
    int adapter = (int)blockIdx.z, layer = 0, first = (int)blockIdx.y * TILE, n_row;
    int64_t from, end, row;
    W *ring = (W *)lora_smem;
    row_list own, plain;

    ml_grid_release();
    while (!GLU && layer + 1 < c.n_layer && (int)blockIdx.x >= c.layer[layer + 1].first_run)
        layer++;
    from = (int64_t)((int)blockIdx.x - c.layer[layer].first_run) * c.tiles * COLS;
    end = from + c.tiles * COLS;
    end = end < c.layer[layer].width ? end : c.layer[layer].width;
    block b = { c,
                &s.at[adapter][layer],
                layer,
                from,
                end,
                ring,
                (bf16 *)(ring + block::stages * block::layers * block::tile_size) };
    own = rows_of(m, adapter + 1);
    n_row = b.site[0].a ? own.n : 0;
    for (int i = 0; i < block::stages - 1 && first < n_row; i++)
        b.copy(i);
    row = lane_row(own, first);
    plain = rows_of(m, 0);
    ml_grid_wait();
    for (; first < n_row; first += (int)gridDim.y * TILE, row = lane_row(own, first)) {
        for (int i = 0; i < block::stages - 1 && first > (int)blockIdx.y * TILE; i++)
            b.copy(i);
        b.run(row, m.n_row);
    }
    if (c.copies && blockIdx.y == 0) {
        copy_rows<GLU>(c, layer, plain, adapter, c.n_adapter, from, end);
        if (!n_row)
            copy_rows<GLU>(c, layer, own, 0, 1, from, end);
    }
    ml_copy_wait<0>();
}

/* ---- the op ---- */

template <class W> static size_t low_bytes(const decode_call &c, int ld) {
    return (size_t)(c.n_layer * ld * stride_of(c.each)) * sizeof(W) +
           (size_t)(TILE * stride_of(c.each)) * sizeof(bf16);
}

/* For two layers with GLU, or one with twice as many stages. */
template <class W> static size_t add_bytes(int ld) {
    const int stages = 4, layers = 2;
    return (size_t)(stages * COLS * stride_of(ld)) * sizeof(W) +
           (size_t)(layers * TILE * stride_of(ld)) * sizeof(bf16);
}

/* A call with its kernels' arguments. */
struct decode_work {
    decode_call c;
    decode_sites<ADAPTERS> sites;
    row_map map;
    ml_dtype type; /* of the adapters */
    int ld, n_run;
    bool glu, pdl;
};

/* The adapters of all layers; false: their matrices have different types. */
static bool find_sites(decode_work *w, const ml_op_args *const *a, int n) {
    bool any = false;

    for (int j = 0; j < n; j++)
        for (int i = 0; i < a[j]->lora->n_adapter; i++) {
            const ml_lora_site *site = site_of(a[j], i);
            if (!site)
                continue;
            if (any && site->a.dtype != w->type)
                return false;
            any = true;
            w->type = site->a.dtype;
            w->sites.at[i][j] = { site->a.data, site->b.data, site->scale,
                                  (int)site->a.shape[1] };
        }
    return true;
}

static bool is_plain(const lora_call &l) {
    return l.any && (l.map.lists || !l.map.adapter) && l.n_head == 1 && !l.map.start &&
           !l.dropped && !l.a->attr->lora.transposed && l.map.n_row <= ML_LORA_FEW &&
           l.a->lora->n_adapter > 0 && l.a->lora->n_adapter <= ADAPTERS &&
           ml_cuda_lora_on_tensor_cores(l.a);
}

/* joint: the outputs without adapters, of all layers side by side, or NULL. */
static bool add_layers(decode_work *w, ml_cuda_stream *s, const ml_op_args *const *a, int n,
                       const bf16 *joint) {
    lora_call first = lora_open(&s->base, a[0]);
    int64_t joint_ld = 0;

    for (int j = 0; j < n; j++)
        joint_ld += a[j]->in[1].shape[1];
    for (int j = 0; j < n; j++) {
        lora_call l = lora_open(&s->base, a[j]);
        decode_layer &to = w->c.layer[j];
        if (!is_plain(l) || l.rank != first.rank || l.n_in != first.n_in)
            return false;
        to.y = joint ? joint : (const bf16 *)a[j]->in[1].data;
        to.y_ld = joint ? joint_ld : l.n_out;
        to.z = (bf16 *)a[j]->out[0].data;
        to.z_ld = to.width = l.n_out;
        w->c.copies = w->c.copies || to.y != to.z;
        joint = joint ? joint + l.n_out : NULL;
    }
    w->map = first.map;
    return true;
}

/* Few adapters have many rows each: blocks divide them. */
static unsigned divided(const decode_work &w) {
    unsigned tiles = ml_cuda_blocks(w.map.n_row, TILE);
    unsigned blocks = (unsigned)(DIVIDED / w.c.n_adapter);

    return blocks < 1 ? 1 : blocks < tiles ? blocks : tiles;
}

/* Divides the columns of the layers among blocks. */
static void divide_columns(decode_work *w) {
    decode_call &c = w->c;
    int64_t tiles = 0;

    for (int j = 0; j < (w->glu ? 1 : c.n_layer); j++)
        tiles += ml_cuda_blocks(c.layer[j].width, COLS);
    c.tiles = (int)((tiles * c.n_adapter * divided(*w) + BLOCKS - 1) / BLOCKS);
    for (int j = 0; j < (w->glu ? 1 : c.n_layer); j++) {
        c.layer[j].first_run = w->n_run;
        w->n_run += (int)ml_cuda_blocks(c.layer[j].width, (int64_t)c.tiles * COLS);
    }
}

static bool fits(const decode_work *w, const ml_cuda_stream *s) {
    bool half = w->type == ML_BF16;
    size_t most = s->early ? MOST_SMEM : OLDER_SMEM;

    return w->ld <= 2 * DEEP &&
           (half ? low_bytes<bf16>(w->c, w->ld) : low_bytes<float>(w->c, w->ld)) <= most &&
           (half ? add_bytes<bf16>(w->ld) : add_bytes<float>(w->ld)) <= most;
}

static bool begin(decode_work *w, ml_cuda_stream *s, const ml_op_args *const *a, int n,
                  const bf16 *joint) {
    ml_lora_scratch at = ml_cuda_lora_mma_scratch(a[0]);
    decode_call &c = w->c;

    memset(w, 0, sizeof *w);
    w->type = ML_F32;
    if (!add_layers(w, s, a, n, joint) || !find_sites(w, a, n))
        return false;
    c.x = (const bf16 *)a[0]->in[0].data;
    c.part = (float *)((char *)a[0]->scratch + at.decode);
    c.width = a[0]->in[0].shape[1];
    c.each = ml_cuda_lora_segment(c.width);
    c.n_part = (int)ml_cuda_lora_parts(c.width);
    c.n_layer = n;
    c.n_adapter = a[0]->lora->n_adapter;
    w->ld = (int)at.ld;
    w->pdl = s->early;
    return fits(w, s);
}

template <int MOST>
static void launch(ml_cuda_stream *s, const decode_work &w,
                   void (*kernel)(decode_call, decode_sites<MOST>, row_map), dim3 grid,
                   size_t bytes) {
    decode_sites<MOST> sites;

    memcpy(&sites, &w.sites, sizeof sites);
    ml_cuda_note(s,
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "lora");
    ml_cuda_launch_as(s, "lora", { w.pdl, 1 }, kernel, grid, THREADS, bytes, w.c, sites,
                      w.map);
}

template <class W, int MOST> static void run_low(ml_cuda_stream *s, const decode_work &w) {
    dim3 grid((unsigned)w.c.n_part, divided(w), (unsigned)w.c.n_adapter);
    size_t bytes = low_bytes<W>(w.c, w.ld);

    if (w.ld > DEEP)
        launch(s, w, decode_low_kernel<W, 2 * DEEP, MOST>, grid, bytes);
    else
        launch(s, w, decode_low_kernel<W, DEEP, MOST>, grid, bytes);
}

template <class W, int MOST, bool GLU>
static void launch_add(ml_cuda_stream *s, const decode_work &w) {
    dim3 grid((unsigned)w.n_run, divided(w), (unsigned)w.c.n_adapter);
    size_t bytes = add_bytes<W>(w.ld);

    if (w.ld > DEEP)
        launch(s, w, decode_add_kernel<W, 2 * DEEP, MOST, GLU>, grid, bytes);
    else
        launch(s, w, decode_add_kernel<W, DEEP, MOST, GLU>, grid, bytes);
}

template <class W, int MOST> static void run_add(ml_cuda_stream *s, const decode_work &w) {
    if (w.glu)
        launch_add<W, MOST, true>(s, w);
    else
        launch_add<W, MOST, false>(s, w);
}

bool ml_cuda_lora_decode_supports(ml_cuda_stream *s, const ml_op_args *const *a, int n) {
    decode_work w;
    return begin(&w, s, a, n, NULL);
}

bool ml_cuda_lora_decode_gates(const ml_op_args *const *a) {
    for (int i = 0; i < a[0]->lora->n_adapter; i++)
        if (!site_of(a[0], i) != !site_of(a[1], i))
            return false;
    return true;
}

static void low(ml_cuda_stream *s, const ml_op_args *const *a, int n) {
    decode_work w;

    begin(&w, s, a, n, NULL);
    if (w.type != ML_BF16)
        run_low<float, ADAPTERS>(s, w);
    else if (w.c.n_adapter > FEW_ADAPTERS)
        run_low<bf16, ADAPTERS>(s, w);
    else
        run_low<bf16, FEW_ADAPTERS>(s, w);
}

cudaGraphNode_t ml_cuda_lora_decode_low(ml_cuda_stream *s, const ml_op_args *const *a,
                                        int n) {
    low(s, a, n);
    return ml_graph_release_next(s);
}

/* after: the dependencies are those of graph_edges.cuh. */
static void add(ml_cuda_stream *s, const ml_op_args *const *a, int n, const bf16 *joint,
                const ml_op_args *glu, bool after) {
    decode_work w;

    begin(&w, s, a, n, joint);
    w.pdl = w.pdl && !after;
    if (glu) {
        w.glu = w.c.copies = true;
        w.c.act = glu->attr->glu.act;
        w.c.limit = glu->attr->glu.limit;
        w.c.layer[0].z = (bf16 *)glu->out[0].data;
    }
    divide_columns(&w);
    if (w.type != ML_BF16)
        run_add<float, ADAPTERS>(s, w);
    else if (w.c.n_adapter > FEW_ADAPTERS)
        run_add<bf16, ADAPTERS>(s, w);
    else
        run_add<bf16, FEW_ADAPTERS>(s, w);
}

void ml_cuda_lora_decode_add(ml_cuda_stream *s, const ml_op_args *const *a, int n,
                             const bf16 *joint, const ml_op_args *glu,
                             cudaGraphNode_t low) {
    add(s, a, n, joint, glu, low && ml_graph_begin_early(s, low));
}

void ml_cuda_lora_decode(ml_cuda_stream *s, const ml_op_args *const *a, int n) {
    low(s, a, n);
    add(s, a, n, NULL, NULL, false);
}
