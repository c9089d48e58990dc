/* encode.cu - quantizes bf16 matrices to panels or rows of codes (tensor/codes.h), by the rules of
 * io/quantize.h, or to bf16 by ml_quant_fake_int4: the bytes are those of the host's.
 *
 * A block has a tile of 128 outputs and 128 inputs, whole groups of every format. */
#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"

enum {
    TILE = 128,
    THREADS = 256,
    LD = TILE + 2,
    PANELS = TILE / ML_LANES,
    MOST_GROUPS = TILE / 32
};

struct encoding {
    const bf16 *from; /* row-major matrices of all members */
    unsigned char *to;
    size_t panel, scales; /* bytes of a panel, and of its scales */
    int64_t n, k;
};

struct tile_smem {
    bf16 x[TILE][LD];
    float scale[TILE][MOST_GROUPS], inverse[TILE][MOST_GROUPS]; /* scale NaN: not finite */
    float most[THREADS / 32];
};

template <ml_dtype D> struct format;
template <> struct format<ML_FP8> { static const int group = 128, bits = 8; };
template <> struct format<ML_MXFP8> { static const int group = 32, bits = 8; };
template <> struct format<ML_INT8> { static const int group = 128, bits = 8; };
template <> struct format<ML_INT4> { static const int group = 32, bits = 4; };
template <> struct format<ML_INT4_G128> { static const int group = 128, bits = 4; };
template <> struct format<ML_NF4> { static const int group = 64, bits = 4; };

/* Of numbers of a group; infinite if one of them is not finite. */
__device__ static float magnitude(float most, float x) {
    return fabsf(x) < INFINITY ? ml_max(fabsf(x), most) : INFINITY;
}

/* The exponent, biased by 127, of ml_mxfp8_exponent. */
__device__ static int mxfp8_exponent(float amax) {
    uint32_t u = __float_as_uint(amax * (1.0f / 448.0f)), e = u >> 23, m = u & 0x7fffff;

    if (m && e != 254 && !(e == 0 && m <= 0x400000))
        e++;
    return (int)e;
}

/* What codes are computed with, and the stored scale. */
template <ml_dtype D>
__device__ static void scale_of(float amax, float *by, float *stored) {
    switch (D) {
    case ML_FP8: *by = *stored = ml_max(amax, 1e-10f) / 448.0f; break;
    case ML_MXFP8:
        *by = ldexpf(1.0f, 127 - mxfp8_exponent(amax));
        *stored = ldexpf(1.0f, mxfp8_exponent(amax) - 127);
        break;
    case ML_INT8: *by = *stored = ml_max(amax / 127.0f, 1e-10f); break;
    case ML_NF4:
        *by = amax > 0.0f ? 1.0f / amax : 0.0f;
        *stored = amax;
        break;
    default: *by = *stored = ml_max(amax * (1.0f / 7.0f), 1e-5f); break;
    }
    if (!(amax < INFINITY))
        *stored = __uint_as_float(0x7fc00000); /* the host's NaN */
}

__device__ static uint32_t nf4_code(float x) {
    const float above[15] = {
        -0.8480964004993439f,   -0.6106329262256622f,  -0.4599952697753906f,
        -0.33967943489551544f,  -0.23460740596055984f, -0.13791173323988914f,
        -0.045525018125772475f, 0.03979014977812767f,  0.1202552504837513f,
        0.2035212516784668f,    0.2920137718319893f,   0.3893125355243683f,
        0.5016634166240692f,    0.6427869200706482f,   0.8614784181118011f,
    };
    uint32_t code = 0;

#pragma unroll
    for (int i = 0; i < 15; i++) /* the limits ascend */
        code += x > above[i];
    return code;
}

template <ml_dtype D> __device__ static uint32_t code_of(float x, float by) {
    switch (D) {
    case ML_FP8: return __nv_cvt_float_to_fp8(x / by, __NV_SATFINITE, __NV_E4M3);
    case ML_MXFP8: return __nv_cvt_float_to_fp8(x * by, __NV_SATFINITE, __NV_E4M3);
    case ML_INT8: return (unsigned char)(signed char)rintf(x / by);
    case ML_NF4: return nf4_code(x * by);
    default: return (uint32_t)((int)rintf(x / by) + 8);
    }
}

/* ---- a tile ---- */

__device__ static void load_tile(tile_smem &smem, const encoding &c, const bf16 *from,
                                 int64_t n0, int64_t k0) {
    for (int i = (int)threadIdx.x; i < TILE * TILE; i += THREADS) {
        int row = i / TILE, col = i % TILE;
        bool there = n0 + row < c.n && k0 + col < c.k;
        smem.x[row][col] = there ? from[(n0 + row) * c.k + k0 + col] : ml_as<bf16>(0.0f);
    }
    __syncthreads();
}

/* Two threads have a row, 64 inputs each; FP8 has one scale for the tile. */
template <ml_dtype D> __device__ static void find_scales(tile_smem &smem) {
    const int group = format<D>::group, half = TILE / 2;
    int row = (int)threadIdx.x / 2, first = (int)threadIdx.x % 2 * half;

    for (int g = first; g < first + half; g += group < half ? group : half) {
        float amax = 0.0f, by, stored;
        for (int i = g; i < g + (group < half ? group : half); i++)
            amax = magnitude(amax, ml_f32(smem.x[row][i]));
        if (group == TILE)
            amax = ml_max(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
        if (D == ML_FP8)
            amax = ml_block_max<THREADS / 32>(amax, smem.most);
        scale_of<D>(amax, &by, &stored);
        smem.scale[row][g / group] = stored;
        smem.inverse[row][g / group] = by;
    }
    __syncthreads();
}

template <ml_dtype D>
__device__ static uint32_t code_at(const tile_smem &smem, int row, int col) {
    int g = col / format<D>::group;

    if (isnan(smem.scale[row][g]))
        return 1;
    return code_of<D>(ml_f32(smem.x[row][col]), smem.inverse[row][g]);
}

/* A thread has the codes of 16 outputs for one input: 16 bytes. */
template <ml_dtype D>
__device__ static void put_bytes(const tile_smem &smem, const encoding &c,
                                 unsigned char *panels, int64_t left, int64_t k0) {
    for (int i = (int)threadIdx.x; i < PANELS * TILE; i += THREADS) {
        int panel = i / TILE, col = i % TILE;
        uint32_t word[4] = {};
        if (panel >= left || k0 + col >= (c.k + 7) / 8 * 8)
            continue;
#pragma unroll
        for (int lane = 0; lane < ML_LANES; lane++)
            word[lane / 4] |=
                (k0 + col < c.k ? code_at<D>(smem, panel * ML_LANES + lane, col) : 0)
                << lane % 4 * 8;
        *(uint4 *)(panels + panel * c.panel + c.scales + (k0 + col) * ML_LANES) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* A thread has the codes of eight inputs of an output: a word. */
template <ml_dtype D>
__device__ static void put_words(const tile_smem &smem, const encoding &c,
                                 unsigned char *panels, int64_t left, int64_t k0) {
    for (int i = (int)threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
        int lane = i % ML_LANES, eight = i / ML_LANES % (TILE / 8), panel = i / (2 * TILE);
        uint32_t word = 0;
        if (panel >= left || k0 + eight * 8 >= c.k)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (k0 + eight * 8 + j < c.k)
                word |= code_at<D>(smem, panel * ML_LANES + lane, eight * 8 + j) << j * 4;
        ((uint32_t *)(panels + panel * c.panel +
                      c.scales))[(k0 / 8 + eight) * ML_LANES + lane] = word;
    }
}

/* Conversions have another NaN than the host. */
__device__ static uint16_t bf16_bits(float x) {
    return isnan(x) ? (uint16_t)(__float_as_uint(x) >> 16)
                    : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

template <ml_dtype D>
__device__ static void put_scales(const tile_smem &smem, const encoding &c,
                                  unsigned char *panels, int64_t left, int64_t k0) {
    const int group = format<D>::group;
    const bool narrow = D == ML_MXFP8 || D == ML_INT4 || D == ML_INT4_G128;

    for (int i = (int)threadIdx.x; i < TILE * (TILE / group); i += THREADS) {
        int row = i % TILE, g = i / TILE;
        unsigned char *panel = panels + row / ML_LANES * c.panel;
        int64_t at = (k0 / group + g) * ML_LANES + row % ML_LANES;
        if (row / ML_LANES >= left || k0 + g * group >= c.k)
            continue;
        if (narrow)
            ((uint16_t *)panel)[at] = bf16_bits(smem.scale[row][g]);
        else
            ((float *)panel)[at] = smem.scale[row][g];
    }
}

template <ml_dtype D> __global__ void __launch_bounds__(THREADS) encode(const encoding c) {
    __shared__ tile_smem smem;
    int64_t k0 = (int64_t)blockIdx.x * TILE, n0 = (int64_t)blockIdx.y * TILE;
    int64_t panels = (c.n + ML_LANES - 1) / ML_LANES, first = n0 / ML_LANES;
    unsigned char *to = c.to + ((int64_t)blockIdx.z * panels + first) * c.panel;

    load_tile(smem, c, c.from + (int64_t)blockIdx.z * c.n * c.k, n0, k0);
    find_scales<D>(smem);
    if (format<D>::bits == 8)
        put_bytes<D>(smem, c, to, panels - first, k0);
    else
        put_words<D>(smem, c, to, panels - first, k0);
    put_scales<D>(smem, c, to, panels - first, k0);
}

/* ---- rows of codes (ML_FP8_BLOCKWISE) ---- */

struct row_encoding {
    const bf16 *from;
    unsigned char *to;
    int64_t ld, before;   /* bytes of a row, and those before its scales */
    int64_t n, stored, k; /* stored: rows of a member, whole panels */
};

/* Half a warp has 128 inputs of a row, a thread eight of every 16th row of the tile. */
enum { EIGHT = 8, ACROSS = TILE / EIGHT, DOWN = THREADS / ACROSS, DEEP = TILE / DOWN };

/* Zeros where the matrix has no numbers.  WIDE: rows are a multiple of eight. */
template <bool WIDE>
__device__ static uint4 load_eight(const row_encoding &c, const bf16 *from, int64_t row,
                                   int64_t k) {
    if constexpr (WIDE) {
        return row < c.n && k < c.k ? *(const uint4 *)(from + row * c.k + k)
                                    : make_uint4(0, 0, 0, 0);
    } else {
        __align__(16) bf16 v[EIGHT];
#pragma unroll
        for (int i = 0; i < EIGHT; i++)
            v[i] = row < c.n && k + i < c.k ? from[row * c.k + k + i] : ml_as<bf16>(0.0f);
        return *(const uint4 *)v;
    }
}

/* The larger magnitudes of pairs of bf16 numbers, as bits: NaN and infinity are the largest. */
__device__ static uint32_t larger_bits(uint32_t most, const uint4 &v) {
    const uint32_t size = 0x7fff7fffu;

    most = __vmaxu2(most, __vmaxu2(v.x & size, v.y & size));
    return __vmaxu2(most, __vmaxu2(v.z & size, v.w & size));
}

/* Eight codes of a finite block; that of a zero is 0. */
__device__ static uint2 eight_codes(const uint4 &raw, float by) {
    float v[EIGHT];
    uint32_t two[EIGHT / 2];

    ml_load(v, (const bf16 *)&raw);
#pragma unroll
    for (int i = 0; i < EIGHT / 2; i++)
        two[i] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * i] / by, v[2 * i + 1] / by),
                                          __NV_SATFINITE, __NV_E4M3);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Of one that is not: 1 for each of the `left` inputs. */
__device__ static uint2 eight_ones(int64_t left) {
    uint64_t ones = 0x0101010101010101u;

    if (left < EIGHT)
        ones &= left > 0 ? ((uint64_t)1 << left * 8) - 1 : 0;
    return make_uint2((uint32_t)ones, (uint32_t)(ones >> 32));
}

template <bool WIDE>
__global__ void __launch_bounds__(THREADS, 2) encode_rows(const row_encoding c) {
    __shared__ float most[THREADS / 32];
    int64_t row0 = (int64_t)blockIdx.y * TILE + threadIdx.x / ACROSS;
    int64_t k = (int64_t)blockIdx.x * TILE + threadIdx.x % ACROSS * EIGHT;
    const bf16 *from = c.from + (int64_t)blockIdx.z * c.n * c.k;
    unsigned char *to = c.to + (int64_t)blockIdx.z * c.stored * c.ld;
    uint32_t bits = 0;
    uint4 v[DEEP];
    float amax, by, stored;

#pragma unroll
    for (int i = 0; i < DEEP; i++)
        v[i] = load_eight<WIDE>(c, from, row0 + i * DOWN, k);
#pragma unroll
    for (int i = 0; i < DEEP; i++)
        bits = larger_bits(bits, v[i]);
    bits = bits >> 16 > (bits & 0xffff) ? bits >> 16 : bits & 0xffff;
    amax = bits < 0x7f80 ? __uint_as_float(bits << 16) : INFINITY;
    amax = ml_block_max<THREADS / 32>(amax, most);
    scale_of<ML_FP8>(amax, &by, &stored);
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        int64_t row = row0 + i * DOWN;
        if (row >= c.stored)
            break;
        if (k < c.before)
            *(uint2 *)(to + row * c.ld + k) =
                amax < INFINITY ? eight_codes(v[i], by) : eight_ones(c.k - k);
        if (threadIdx.x % ACROSS == 0)
            ((float *)(to + row * c.ld + c.before))[blockIdx.x] = stored;
    }
}

static void run_rows(ml_cuda_stream *s, const encoding &e, int64_t members) {
    row_encoding c = { e.from,
                       e.to,
                       ml_codes_row_bytes(e.k),
                       ml_codes_row_scales(e.k),
                       e.n,
                       (e.n + ML_LANES - 1) / ML_LANES * ML_LANES,
                       e.k };

    dim3 grid(ml_cuda_blocks(c.k, TILE), ml_cuda_blocks(c.n, TILE), (unsigned)members);

    if (c.k % EIGHT == 0)
        encode_rows<true><<<grid, THREADS, 0, s->stream>>>(c);
    else
        encode_rows<false><<<grid, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "quantization");
}

/* ---- bf16 with f32 scales (ml_quant_fake_int4) ---- */

struct faking {
    bf16 *to;
    const bf16 *from;
    int64_t cols, group, groups, all; /* groups: of a row; all: of all rows */
};

/* A warp has a group. */
__global__ void __launch_bounds__(THREADS) fake_int4(const faking c) {
    int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int64_t k = at % c.groups * c.group, row = at / c.groups * c.cols;
    int64_t end = row + (k + c.group < c.cols ? k + c.group : c.cols);
    float amax = 0.0f, scale;

    if (at >= c.all)
        return;
    for (int64_t i = row + k + threadIdx.x % 32; i < end; i += 32)
        amax = magnitude(amax, ml_f32(c.from[i]));
    amax = ml_warp_max(amax);
    scale = ml_max(amax / 7.0f, 1e-5f);
    for (int64_t i = row + k + threadIdx.x % 32; i < end; i += 32)
        c.to[i] = amax < INFINITY ? ml_as<bf16>(rintf(ml_f32(c.from[i]) / scale) * scale)
                                  : __ushort_as_bfloat16(0x7fc0); /* the host's NaN */
}

void ml_cuda_fake_int4(ml_stream *stream, const ml_tensor *to, const ml_tensor *from,
                       int64_t group) {
    ml_cuda_stream *s = ml_cuda(stream);
    faking c = {};

    c.to = (bf16 *)to->data;
    c.from = (const bf16 *)from->data;
    c.cols = to->shape[to->n_dim - 1];
    c.group = group;
    c.groups = (c.cols + group - 1) / group;
    c.all = ml_tensor_count(to) / c.cols * c.groups;
    fake_int4<<<ml_cuda_blocks(c.all, THREADS / 32), THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "quantization");
}

/* ---- all formats ---- */

template <ml_dtype D>
static void run(ml_cuda_stream *s, const encoding &c, int64_t members) {
    encode<D>
        <<<dim3(ml_cuda_blocks(c.k, TILE), ml_cuda_blocks(c.n, TILE), (unsigned)members),
           THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "quantization");
}

void ml_cuda_encode(ml_stream *stream, const ml_tensor *to, const ml_tensor *from) {
    ml_cuda_stream *s = ml_cuda(stream);
    int64_t members = to->n_dim == 3 ? to->shape[0] : 1;
    encoding c = {};

    c.from = (const bf16 *)from->data;
    c.to = (unsigned char *)to->data;
    c.n = to->shape[to->n_dim - 2];
    c.k = to->shape[to->n_dim - 1];
    c.panel = ml_codes_panel_bytes(to->dtype, c.k);
    c.scales = ml_codes_scale_bytes(to->dtype, c.k);
    if (to->layout == ML_ROWS) {
        run_rows(s, c, members);
        return;
    }
    switch (to->dtype) {
    case ML_FP8:
    case ML_FP8_BLOCKWISE: run<ML_FP8>(s, c, members); break;
    case ML_MXFP8: run<ML_MXFP8>(s, c, members); break;
    case ML_INT8: run<ML_INT8>(s, c, members); break;
    case ML_INT4: run<ML_INT4>(s, c, members); break;
    case ML_INT4_G128: run<ML_INT4_G128>(s, c, members); break;
    default: run<ML_NF4>(s, c, members); break;
    }
}
