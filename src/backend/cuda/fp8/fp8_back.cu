/* fp8_back.cu - rounds the operands of FP8 gradients.
 *
 * A block has 128 x 128 numbers of a matrix, a thread 8 x 8 of them: a matrix is read once, both for its
 * codes along rows and for those along columns, which pass through shared memory to be written in whole
 * lines. */
#include <cuda_fp8.h>

#include "backend/cuda/fp8/fp8_back.cuh"
#include "backend/cuda/glu.cuh"

enum {
    TILE = 128,
    EIGHT = 8, /* rows and columns of a thread */
    ACROSS = TILE / EIGHT,
    THREADS = ACROSS * ACROSS,
    WARPS = THREADS / 32
};

/* ---- a tile of codes, transposed ---- */

/* Column j of thread (c, r) has its codes of eight rows in place r ^ c of the tile's row, so that the threads
 * of a warp write to different banks. */
typedef uint2 code_tile[TILE][ACROSS];

__device__ static void put_column(code_tile &tile, int c, int r, int j, uint2 codes) {
    tile[c * EIGHT + j][r ^ c] = codes;
}

/* 16 codes of a column, from row 16 * piece on. */
__device__ static uint4 get_piece(const code_tile &tile, int col, int piece) {
    int c = col / EIGHT;
    uint4 v = *(const uint4 *)&tile[col][((2 * piece) ^ c) & ~1];

    return c & 1 ? make_uint4(v.z, v.w, v.x, v.y) : v;
}

/* The whole tile: rows of `to` are its columns. */
__device__ static void write_columns(unsigned char *to, int64_t ld, const code_tile &tile) {
#pragma unroll
    for (int i = (int)threadIdx.x; i < TILE * TILE / 16; i += THREADS)
        *(uint4 *)(to + i / 8 * ld + i % 8 * 16) = get_piece(tile, i / 8, i % 8);
}

/* ---- rounding ---- */

/* Two numbers in a word, the first in its low half. */
__device__ static uint32_t larger_of(uint32_t a, uint32_t b) {
    __nv_bfloat162 m =
        __hmax2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b); /* NaN does not count */
    return *(uint32_t *)&m;
}

__device__ static uint32_t size_of(uint32_t pair) {
    return pair & 0x7fff7fffu;
}

__device__ static float low_of(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ static float high_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

__device__ static uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <bool E5M2> __device__ static float scale_of(float amax) {
    return ml_max(amax, 1e-30f) / (E5M2 ? 57344.0f : 448.0f);
}

/* To nearest even, saturating. */
template <bool E5M2> __device__ static uint32_t two_codes(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                    E5M2 ? __NV_E5M2 : __NV_E4M3);
}

/* Of two rows: the largest numbers of both, a row in each half. */
__device__ static uint32_t largest_of_rows(const uint4 &first, const uint4 &second) {
    uint32_t a = larger_of(larger_of(size_of(first.x), size_of(first.y)),
                           larger_of(size_of(first.z), size_of(first.w)));
    uint32_t b = larger_of(larger_of(size_of(second.x), size_of(second.y)),
                           larger_of(size_of(second.z), size_of(second.w)));

    return larger_of(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
}

/* Where a thread's eight rows are: among those before the tail, in it, or in neither. */
struct place {
    unsigned char *code; /* of the first of them; NULL: nowhere */
    float *scale;
    int64_t groups; /* from the scales of a group to those of the next */
};

__device__ static place find_place(const ml_fp8_rounding &o, int64_t row0) {
    int64_t before = o.rows - o.rows % ML_FP8_TAIL, at = row0 - before;
    bool in_tail = at >= 0;
    unsigned char *code = in_tail ? o.tail.code : o.along_rows.code;
    float *scale = in_tail ? o.tail.scale : o.along_rows.scale;

    at = in_tail ? at : row0;
    return { code && (!in_tail || at < ML_FP8_TAIL) ? code + at * o.ld : NULL, scale + at,
             in_tail ? ML_FP8_TAIL : before };
}

/* Eight rows of 128 numbers, of which 16 lanes have eight each.  Lane i of them computes the scale of row
 * i % 8. */
template <bool E5M2>
__device__ static void round_rows(const place &p, const uint4 (&v)[EIGHT], int64_t col0,
                                  int64_t ld) {
    int lane = (int)threadIdx.x % 32, mine = lane % EIGHT;
    uint32_t amax[EIGHT / 2], own = 0;
    float scale, inverse;

#pragma unroll
    for (int i = 0; i < EIGHT / 2; i++) {
        amax[i] = largest_of_rows(v[2 * i], v[2 * i + 1]);
#pragma unroll
        for (int w = ACROSS / 2; w; w >>= 1)
            amax[i] = larger_of(amax[i], __shfl_xor_sync(0xffffffffu, amax[i], w));
        own = mine / 2 == i ? amax[i] : own;
    }
    scale = scale_of<E5M2>(mine % 2 ? high_of(own) : low_of(own));
    inverse = 1.0f / scale;
    if (p.code && lane % ACROSS < EIGHT)
        p.scale[col0 / TILE * p.groups + mine] = scale;
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float by = __shfl_sync(0xffffffffu, inverse, (lane & ACROSS) + i);
        uint32_t code[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t pair = word_of(v[i], j);
            code[j] = two_codes<E5M2>(low_of(pair) * by, high_of(pair) * by);
        }
        if (p.code)
            *(uint2 *)(p.code + i * ld + col0) =
                make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
    }
}

/* The largest numbers of two columns of the block, for the first TILE / 2 threads. */
__device__ static uint32_t largest_of_columns(const uint4 (&v)[EIGHT]) {
    __shared__ uint32_t part[WARPS][TILE / 2];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t all = 0;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t amax = 0;
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            amax = larger_of(amax, size_of(word_of(v[i], j)));
        amax = larger_of(amax, __shfl_xor_sync(0xffffffffu, amax, ACROSS));
        if (lane < ACROSS)
            part[warp][lane * 4 + j] = amax;
    }
    __syncthreads();
    for (int i = 0; threadIdx.x < TILE / 2 && i < WARPS; i++)
        all = larger_of(all, part[i][threadIdx.x]);
    return all;
}

/* The scales of the block's columns, or of the block, and the inverse of each column's. */
template <bool E5M2, bool BLOCKS>
__device__ static void scale_columns(const ml_fp8_rounding &o, float (&inverse)[TILE],
                                     const uint4 (&v)[EIGHT]) {
    __shared__ float half[2];
    uint32_t amax = largest_of_columns(v);
    float top = ml_max(low_of(amax), high_of(amax));
    float2 s = make_float2(scale_of<E5M2>(low_of(amax)), scale_of<E5M2>(high_of(amax)));

    if (BLOCKS && threadIdx.x < TILE / 2) {
        top = ml_warp_max(top);
        if (threadIdx.x % 32 == 0)
            half[threadIdx.x / 32] = top;
    }
    if (BLOCKS) {
        __syncthreads();
        s.x = s.y = scale_of<E5M2>(ml_max(half[0], half[1]));
        if (threadIdx.x == 0)
            o.along_cols.scale[blockIdx.x * ((gridDim.y + 3) / 4 * 4) + blockIdx.y] = s.x;
    }
    if (threadIdx.x < TILE / 2) {
        if (!BLOCKS)
            *(float2 *)(o.along_cols.scale + blockIdx.y * o.ld + blockIdx.x * TILE +
                        2 * threadIdx.x) = s;
        inverse[2 * threadIdx.x] = 1.0f / s.x;
        inverse[2 * threadIdx.x + 1] = 1.0f / s.y;
    }
    __syncthreads();
}

/* The codes of a thread's column j, which has eight rows. */
template <bool E5M2>
__device__ static uint2 column_codes(const uint4 (&v)[EIGHT], int j, float by) {
    uint32_t code[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a = word_of(v[2 * i], j / 2), b = word_of(v[2 * i + 1], j / 2);
        code[i] = j % 2 ? two_codes<E5M2>(high_of(a) * by, high_of(b) * by)
                        : two_codes<E5M2>(low_of(a) * by, low_of(b) * by);
    }
    return make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
}

/* Where a thread's numbers are in a matrix whose blocks are those of the grid. */
struct spot {
    int c, r; /* of the threads of a block */
    int64_t row0, col0;
};

__device__ static spot find_spot(void) {
    int c = (int)threadIdx.x % ACROSS, r = (int)threadIdx.x / ACROSS;

    return { c, r, (int64_t)blockIdx.y * TILE + r * EIGHT,
             (int64_t)blockIdx.x * TILE + c * EIGHT };
}

struct round_smem {
    code_tile tile;
    float inverse[TILE];
};

/* The block's numbers, of which a thread has eight rows in v. */
template <bool E5M2, bool BLOCKS>
__device__ static void round_block(round_smem &smem, const ml_fp8_rounding &o,
                                   const uint4 (&v)[EIGHT]) {
    const spot at = find_spot();
    int64_t padded = (int64_t)gridDim.y * TILE;

    if (o.along_rows.code)
        round_rows<E5M2>(find_place(o, at.row0), v, at.col0, o.ld);
    scale_columns<E5M2, BLOCKS>(o, smem.inverse, v);
#pragma unroll
    for (int j = 0; j < EIGHT; j++)
        put_column(smem.tile, at.c, at.r, j,
                   column_codes<E5M2>(v, j, smem.inverse[at.c * EIGHT + j]));
    __syncthreads();
    write_columns(o.along_cols.code + (int64_t)blockIdx.x * TILE * padded +
                      (int64_t)blockIdx.y * TILE,
                  padded, smem.tile);
}

template <bool E5M2, bool BLOCKS>
__global__ void __launch_bounds__(THREADS) round_operand(const ml_fp8_rounding o) {
    __shared__ __align__(16) round_smem smem;
    const spot at = find_spot();
    uint4 v[EIGHT];

#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        v[i] = at.row0 + i < o.rows
                   ? *(const uint4 *)(o.x + (at.row0 + i) * o.cols + at.col0)
                   : make_uint4(0, 0, 0, 0);
    round_block<E5M2, BLOCKS>(smem, o, v);
}

void ml_fp8_round_operand(ml_cuda_stream *s, const ml_fp8_rounding *r) {
    dim3 grid((unsigned)(r->cols / TILE), ml_cuda_blocks(r->rows, TILE));

    if (r->blocks)
        round_operand<false, true><<<grid, THREADS, 0, s->stream>>>(*r);
    else if (r->e5m2)
        round_operand<true, false><<<grid, THREADS, 0, s->stream>>>(*r);
    else
        round_operand<false, false><<<grid, THREADS, 0, s->stream>>>(*r);
    ml_cuda_launched(s, "rounded gradients");
}

/* ---- gradients of SwiGLU ---- */

__device__ static uint32_t pair_of(float low, float high) {
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);

    return *(uint32_t *)&two;
}

__device__ static uint4 pack_eight(const float (&x)[EIGHT]) {
    return make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]),
                      pair_of(x[6], x[7]));
}

/* Eight numbers of a row; zeros past the last row.  Numbers are unpacked elsewhere: a branch that did so would wait
 * for them before the next load. */
__device__ static uint4 load_row(const bf16 *x, const ml_fp8_rounding &o, int64_t row,
                                 int64_t col) {
    return row < o.rows ? *(const uint4 *)(x + row * o.cols + col) : make_uint4(0, 0, 0, 0);
}

/* The gradients of eight pairs, rounded to bf16 as GLU does. */
__device__ static void gate_gradients(uint4 &dg, uint4 &du, const uint4 &g, const uint4 &u,
                                      const uint4 &dy) {
    float a[EIGHT], b[EIGHT], d[EIGHT];

    ml_load(a, (const bf16 *)&g);
    ml_load(b, (const bf16 *)&u);
    ml_load(d, (const bf16 *)&dy);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
        ml_gate r = ml_gate_of(a[k], b[k], ML_ACT_SILU, 0.0f);
        a[k] = (d[k] * r.up) * r.slope;
        b[k] = (d[k] * r.act) * r.keep;
    }
    dg = pack_eight(a);
    du = pack_eight(b);
}

enum { AT_ONCE = 2 }; /* rows that a thread loads */

/* The gradients of up wait in shared memory for their turn, so that an SM has room for three blocks. */
struct gate_smem {
    round_smem round;
    uint4 du[EIGHT][THREADS];
};

template <bool E5M2>
__global__ void __launch_bounds__(THREADS, 3) round_gate(const ml_fp8_gate_rounding o) {
    extern __shared__ __align__(16) unsigned char bytes[];
    gate_smem &smem = *(gate_smem *)bytes;
    const spot at = find_spot();
    uint4 v[EIGHT];

#pragma unroll
    for (int i = 0; i < EIGHT; i += AT_ONCE) {
        uint4 g[AT_ONCE], u[AT_ONCE], dy[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            g[j] = load_row(o.g, o.gate, at.row0 + i + j, at.col0);
            u[j] = load_row(o.u, o.gate, at.row0 + i + j, at.col0);
            dy[j] = load_row(o.dy, o.gate, at.row0 + i + j, at.col0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            gate_gradients(v[i + j], smem.du[i + j][threadIdx.x], g[j], u[j], dy[j]);
    }
    round_block<E5M2, false>(smem.round, o.gate, v);
#pragma unroll
    for (int i = 0; i < EIGHT; i++)
        v[i] = smem.du[i][threadIdx.x]; /* the thread's own */
    round_block<E5M2, false>(smem.round, o.up, v);
}

template <bool E5M2>
static void launch_gate(ml_cuda_stream *s, const ml_fp8_gate_rounding &r) {
    const char *doing = "rounded gradients of a gate";
    dim3 grid((unsigned)(r.gate.cols / TILE), ml_cuda_blocks(r.gate.rows, TILE));

    ml_cuda_note(s,
                 cudaFuncSetAttribute(round_gate<E5M2>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(gate_smem)),
                 doing);
    round_gate<E5M2><<<grid, THREADS, sizeof(gate_smem), s->stream>>>(r);
    ml_cuda_launched(s, doing);
}

void ml_fp8_round_gate(ml_cuda_stream *s, const ml_fp8_gate_rounding *r) {
    if (r->gate.e5m2)
        launch_gate<true>(s, *r);
    else
        launch_gate<false>(s, *r);
}

/* ---- the weight ---- */

/* Four words of four columns each, of four rows, become words of four rows. */
__device__ static void transpose_words(uint32_t (&v)[4]) {
    uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);

    v[0] = __byte_perm(a, b, 0x5410);
    v[1] = __byte_perm(a, b, 0x7632);
    v[2] = __byte_perm(c, d, 0x5410);
    v[3] = __byte_perm(c, d, 0x7632);
}

__global__ void __launch_bounds__(THREADS)
    transpose_codes(const ml_fp8_operand to, const ml_fp8_blocks w, int64_t ld,
                    int padded_groups) {
    __shared__ __align__(16) code_tile tile;
    int c = (int)threadIdx.x % ACROSS, r = (int)threadIdx.x / ACROSS;
    const unsigned char *from = w.code + ((int64_t)blockIdx.y * TILE + r * EIGHT) * w.ld +
                                (int64_t)blockIdx.x * TILE + c * EIGHT;
    uint32_t v[2][2][4]; /* four columns, four rows */

#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        uint2 eight = *(const uint2 *)(from + i * w.ld);
        v[0][i / 4][i % 4] = eight.x;
        v[1][i / 4][i % 4] = eight.y;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        transpose_words(v[h][0]);
        transpose_words(v[h][1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            put_column(tile, c, r, h * 4 + j, make_uint2(v[h][0][j], v[h][1][j]));
    }
    if (threadIdx.x == 0)
        to.scale[(int64_t)blockIdx.x * padded_groups + blockIdx.y] =
            w.scale[(int64_t)blockIdx.y * gridDim.x + blockIdx.x];
    __syncthreads();
    write_columns(to.code + (int64_t)blockIdx.x * TILE * ld + (int64_t)blockIdx.y * TILE,
                  ld, tile);
}

void ml_fp8_transpose(ml_cuda_stream *s, const ml_fp8_operand *to, const ml_fp8_blocks *w,
                      int64_t n, int64_t k, int64_t ld) {
    dim3 grid((unsigned)(k / TILE), (unsigned)(n / TILE));

    transpose_codes<<<grid, THREADS, 0, s->stream>>>(*to, *w, ld,
                                                     (int)((ld / TILE + 3) / 4 * 4));
    ml_cuda_launched(s, "transposed weights");
}
