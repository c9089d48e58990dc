/* fp8.cu - rounds the inputs of FP8 products. */
#include <cuda_fp8.h>

#include "backend/cuda/fp8/fp8.cuh"

/* Half a warp has 128 inputs of a row, whole groups of every recipe. */
enum {
    THREADS = 256,
    LANE = ML_FP8_LANE,
    WIDTH = ML_FP8_GROUP,
    LANES = ML_FP8_LANES,
    PIECES = THREADS / LANES, /* of a block, at a time */
    MANY = 4,                 /* that a half-warp loads at once, where there are many */
    UNFUSED_ROWS = 64         /* up to so many, SwiGLU is a kernel of its own */
};

/* The exponent of ml_mxfp8_exponent, as a power of two. */
__device__ static int mxfp8_exponent(float amax) {
    uint32_t u = __float_as_uint(amax * (1.0f / 448.0f)), e = u >> 23, m = u & 0x7fffff;

    if (m && e != 254 && !(e == 0 && m <= 0x400000))
        e++;
    return (int)e - 127;
}

/* The scale of a group of GROUP inputs, and its inverse; all its lanes call it. */
template <int GROUP>
__device__ static void scale_group(const float (&v)[LANE], bool power_of_two, float *scale,
                                   float *inverse) {
    float amax = ml_fp8_amax<GROUP / LANE>(v);

    if (power_of_two) {
        int e = mxfp8_exponent(amax);
        *scale = ldexpf(1.0f, e);
        *inverse = ldexpf(1.0f, -e);
    } else {
        *scale = ml_fp8_scale(amax);
        *inverse = 1.0f / *scale;
    }
}

/* To nearest even, saturating at 448. */
__device__ static uint32_t code_of(float x) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ static float value_of(uint32_t code) {
    return __half2float(
        __half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)));
}

/* A lane's inputs from k0 on; zeros past the end.  Numbers are unpacked elsewhere: a branch that did so would wait for
 * them before the next load. */
__device__ static uint4 load(const bf16 *row, int64_t k0, int64_t k) {
    __align__(16) bf16 v[LANE];

    if (k % LANE == 0)
        return k0 < k ? *(const uint4 *)(row + k0) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < LANE; i++)
        v[i] = k0 + i < k ? row[k0 + i] : ml_as<bf16>(0.0f);
    return *(const uint4 *)v;
}

/* Where a half-warp's inputs are. */
struct piece {
    int64_t row, k0; /* k0: of the lane */
    int group;
    bool there;
};

__device__ static piece find_piece(uint32_t at, int64_t rows, int groups) {
    piece p;

    p.row = at / (uint32_t)groups;
    p.group = (int)(at % (uint32_t)groups);
    p.k0 = (int64_t)p.group * WIDTH + (int)threadIdx.x % LANES * LANE;
    p.there = p.row < rows;
    if (!p.there)
        p.row = 0;
    return p;
}

/* A half-warp has N pieces, PIECES apart. */
template <int N>
__global__ void encode(const ml_fp8_out out, const bf16 *x, int64_t k, int groups) {
    uint32_t first = blockIdx.x * (N * PIECES) + threadIdx.x / LANES;
    uint4 raw[N];
    piece p[N];

    ml_grid_release();
    ml_grid_wait();
#pragma unroll
    for (int i = 0; i < N; i++) {
        p[i] = find_piece(first + i * PIECES, out.rows, groups);
        raw[i] = load(x + p[i].row * k, p[i].k0, k);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v[LANE];
        ml_load(v, (const bf16 *)&raw[i]);
        ml_fp8_put(out, p[i].row, p[i].k0, v, p[i].there);
    }
}

/* The rounded values, in bf16. */
template <int GROUP>
__global__ void round_values(bf16 *out, const bf16 *x, int64_t rows, int64_t k,
                             int pieces) {
    piece p = find_piece(blockIdx.x * PIECES + threadIdx.x / LANES, rows, pieces);
    uint4 raw = load(x + p.row * k, p.k0, k);
    float v[LANE], s, inverse;

    ml_load(v, (const bf16 *)&raw);
    scale_group<GROUP>(v, GROUP == 32, &s, &inverse);
#pragma unroll
    for (int i = 0; i < LANE; i++)
        if (p.there && p.k0 + i < k)
            out[p.row * k + p.k0 + i] = ml_as<bf16>(value_of(code_of(v[i] * inverse)) * s);
}

bool ml_fp8_takes(const ml_cuda_stream *s, ml_dtype weights) {
    return s->wgmma && weights == ML_FP8_BLOCKWISE;
}

const void *ml_fp8_values(ml_cuda_stream *s, const ml_op_args *a) {
    int64_t rows = a->in[0].shape[0], k = a->in[0].shape[1];
    int pieces = (int)(ml_cuda_fp8_width(k) / WIDTH);
    const bf16 *x = (const bf16 *)a->in[0].data;
    bf16 *out = (bf16 *)((char *)a->scratch + ml_cuda_dense_bytes(a));
    unsigned blocks = ml_cuda_blocks(rows * pieces, PIECES);

    if (!ml_dtype_rounds_inputs(a->w[0].dtype))
        return x;
    if (rows == 0)
        return out;
    if (a->w[0].dtype == ML_MXFP8)
        round_values<32><<<blocks, THREADS, 0, s->stream>>>(out, x, rows, k, pieces);
    else
        round_values<WIDTH><<<blocks, THREADS, 0, s->stream>>>(out, x, rows, k, pieces);
    ml_cuda_launched(s, "rounded inputs");
    return out;
}

ml_fp8_out ml_fp8_out_at(void *at, int64_t rows, int64_t k) {
    int64_t width = ml_cuda_fp8_width(k);
    unsigned char *code = (unsigned char *)at;

    return { code, (float *)(code + rows * width), rows, width };
}

ml_fp8_out ml_fp8_out_of(const ml_op_args *a) {
    return ml_fp8_out_at((char *)a->scratch + ml_cuda_dense_bytes(a), a->in[0].shape[0],
                         a->in[0].shape[1]);
}

ml_fp8_input ml_fp8_encode(ml_cuda_stream *s, const ml_op_args *a) {
    const ml_fp8_out out = ml_fp8_out_of(a);
    const bf16 *x = (const bf16 *)a->in[0].data;
    int64_t k = a->in[0].shape[1], pieces = out.rows * (out.width / WIDTH);
    int groups = (int)(out.width / WIDTH);

    if (pieces >= (int64_t)s->sms * 2 * PIECES * MANY)
        ml_cuda_launch(s, "rounded inputs", encode<MANY>,
                       dim3(ml_cuda_blocks(pieces, PIECES * MANY)), THREADS, 0, out, x, k,
                       groups);
    else if (pieces)
        ml_cuda_launch(s, "rounded inputs", encode<1>, dim3(ml_cuda_blocks(pieces, PIECES)),
                       THREADS, 0, out, x, k, groups);
    return { out.code, out.scale };
}

ml_fp8_gemm ml_fp8_gemm_of(const ml_op_args *a, ml_fp8_input x, int64_t n, void *y) {
    const ml_tensor *w = &a->w[0];
    int64_t k = a->in[0].shape[1];
    ml_fp8_gemm g = {};

    g.x = x;
    g.w = (const unsigned char *)w->data;
    g.ld = ml_codes_row_bytes(k);
    g.scales = ml_codes_row_scales(k);
    g.y = (bf16 *)y;
    g.rows = (int)a->in[0].shape[0];
    g.n = (int)n;
    g.k = (int)k;
    g.blocks = w->shape[w->n_dim - 2] % 128 == 0;
    if (w->n_dim == 3) {
        g.bias = (const float *)a->w[1].data;
        g.start = (const int32_t *)a->in[1].data;
        g.n_expert = (int)w->shape[0];
    }
    return g;
}

bool ml_fp8_fuses_swiglu(const ml_cuda_stream *s, const ml_fp8_gemm *g) {
    return s->wgmma && !g->start && g->blocks && g->n % ML_FP8_GROUP == 0 &&
           g->rows > UNFUSED_ROWS;
}

void ml_fp8_multiply(ml_cuda_stream *s, const ml_fp8_gemm *g) {
#if ML_WGMMA
    ml_fp8_gemm_run(s, g);
#else
    (void)s, (void)g;
#endif
}
