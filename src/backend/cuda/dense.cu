/* dense.cu - dequantizes weights to bf16, row-major. */
#include <cuda_fp8.h>

#include "backend/cuda/dense.cuh"

enum { THREADS = 256, RUN = 16 /* inputs per thread */, WIDTH = THREADS / ML_LANES * RUN };

struct codes {
    const unsigned char *at; /* the panels of all members */
    size_t panel, scales;    /* bytes of a panel, and of its scales */
    int64_t n, k;            /* outputs and inputs of a member */
    int group;
    bool bf16_scale, integer; /* integer: of 8 bits; else e4m3 */
    float value[16];          /* of codes of 4 bits */
    const int32_t *start;
};

__device__ static float scale_at(const codes &c, const unsigned char *panel, int lane,
                                 int64_t k) {
    int64_t i = k / c.group * ML_LANES + lane;
    return c.bf16_scale ? ml_f32(((const bf16 *)panel)[i]) : ((const float *)panel)[i];
}

__device__ static float value_of_byte(const codes &c, unsigned char code) {
    if (c.integer)
        return (float)(signed char)code;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/* A block's codes in shared memory, from input k on: a thread copies 16 bytes at a time. */
template <int BITS>
__device__ static void load_codes(unsigned char *to, const codes &c,
                                  const unsigned char *panel, int64_t k) {
    const int64_t eight = ML_LANES * BITS; /* bytes of eight inputs */
    int64_t first = k / 8 * eight, end = (c.k + 7) / 8 * eight;

    for (int64_t i = (int)threadIdx.x * 16; i < WIDTH / 8 * eight; i += THREADS * 16)
        if (first + i < end)
            *(uint4 *)(to + i) = *(const uint4 *)(panel + c.scales + first + i);
}

/* RUN inputs of an output, from input k of the block on. */
template <int BITS>
__device__ static void values(float (&v)[RUN], const codes &c, const float *table,
                              const unsigned char *code, int lane, int k) {
#pragma unroll
    for (int i = 0; i < RUN; i++)
        if (BITS == 4) {
            uint32_t word = ((const uint32_t *)code)[(k + i) / 8 * ML_LANES + lane];
            v[i] = table[word >> i % 8 * 4 & 15];
        } else {
            v[i] = value_of_byte(c, code[(k + i) * ML_LANES + lane]);
        }
}

/* A block has 16 outputs, a panel, and WIDTH inputs of a member. */
template <int BITS> __global__ void dequantize(bf16 *out, const codes c) {
    __shared__ float table[16];
    __shared__ __align__(16) unsigned char code[WIDTH * ML_LANES * BITS / 8];
    int lane = (int)threadIdx.x % ML_LANES, member = (int)blockIdx.z;
    int64_t k = (int64_t)blockIdx.x * WIDTH + (int)threadIdx.x / ML_LANES * RUN;
    int64_t row = (int64_t)blockIdx.y * ML_LANES + lane;
    const unsigned char *panel =
        c.at + (member * (int64_t)gridDim.y + blockIdx.y) * c.panel;
    float v[RUN];

    if (c.start && c.start[member] == c.start[member + 1])
        return;
    if (BITS == 4 && threadIdx.x < 16)
        table[threadIdx.x] = c.value[threadIdx.x];
    load_codes<BITS>(code, c, panel, (int64_t)blockIdx.x * WIDTH);
    __syncthreads();
    if (row >= c.n || k >= c.k)
        return;
    values<BITS>(v, c, table, code, lane, (int)(k % WIDTH));
    out += (member * c.n + row) * c.k + k;
#pragma unroll
    for (int i = 0; i < RUN; i += 8) { /* groups begin at multiples of 8 inputs */
        float scale = k + i < c.k ? scale_at(c, panel, lane, k + i) : 0.0f;
#pragma unroll
        for (int j = i; j < i + 8; j++)
            v[j] *= scale;
        if (c.k % 8 == 0 && k + i < c.k) {
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                eight[j] = v[i + j];
            ml_store(out + i, eight);
            continue;
        }
        for (int j = i; j < i + 8 && k + j < c.k; j++)
            out[j] = ml_as<bf16>(v[j]);
    }
}

/* Of rows (ML_FP8_BLOCKWISE): a thread has RUN inputs of an output. */
__global__ void dequantize_rows(bf16 *out, const codes c, int64_t ld, int64_t before) {
    int member = (int)blockIdx.z;
    int64_t k = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * RUN, row = blockIdx.y;
    int64_t stored = (c.n + ML_LANES - 1) / ML_LANES * ML_LANES;
    const unsigned char *from = c.at + (member * stored + row) * ld;
    __align__(16) unsigned char code[RUN];
    float scale, v[RUN];

    if (k >= c.k || (c.start && c.start[member] == c.start[member + 1]))
        return;
    *(uint4 *)code = *(const uint4 *)(from + k);
    scale = ((const float *)(from + before))[k / c.group];
#pragma unroll
    for (int i = 0; i < RUN; i++)
        v[i] = value_of_byte(c, code[i]) * scale;
    out += (member * c.n + row) * c.k + k;
    if (c.k % RUN == 0) {
        float half[2][RUN / 2];
#pragma unroll
        for (int i = 0; i < RUN; i++)
            half[i / (RUN / 2)][i % (RUN / 2)] = v[i];
        ml_store(out, half[0]);
        ml_store(out + RUN / 2, half[1]);
        return;
    }
    for (int i = 0; i < RUN && k + i < c.k; i++)
        out[i] = ml_as<bf16>(v[i]);
}

static codes codes_of(const ml_tensor *w, const int32_t *start) {
    const ml_codes *f = ml_dtype_codes(w->dtype);
    codes c = {};

    c.at = (const unsigned char *)w->data;
    c.n = w->shape[w->n_dim - 2];
    c.k = w->shape[w->n_dim - 1];
    c.panel = ml_codes_panel_bytes(w->dtype, c.k);
    c.scales = ml_codes_scale_bytes(w->dtype, c.k);
    c.group = f->group;
    c.bf16_scale = f->bf16_scale;
    c.integer = w->dtype == ML_INT8;
    for (int i = 0; f->bits == 4 && i < 16; i++)
        c.value[i] = f->value[i];
    c.start = start;
    return c;
}

ml_dtype ml_cuda_dense_dtype(const ml_tensor *w) {
    return ml_dtype_codes(w->dtype) ? ML_BF16 : w->dtype;
}

const void *ml_cuda_dense(ml_cuda_stream *s, const ml_op_args *a, const int32_t *start) {
    const ml_tensor *w = &a->w[0];
    codes c;
    dim3 grid;

    if (!ml_dtype_codes(w->dtype))
        return w->data;
    c = codes_of(w, start);
    if (w->layout == ML_ROWS) {
        dequantize_rows<<<dim3(ml_cuda_blocks(c.k, THREADS * RUN), (unsigned)c.n,
                               (unsigned)(w->n_dim == 3 ? w->shape[0] : 1)),
                          THREADS, 0, s->stream>>>(
            (bf16 *)a->scratch, c, ml_codes_row_bytes(c.k), ml_codes_row_scales(c.k));
        ml_cuda_launched(s, "dequantized weights");
        return a->scratch;
    }
    grid = dim3(ml_cuda_blocks(c.k, WIDTH), ml_cuda_blocks(c.n, ML_LANES),
                (unsigned)(w->n_dim == 3 ? w->shape[0] : 1));
    if (ml_dtype_codes(w->dtype)->bits == 4)
        dequantize<4><<<grid, THREADS, 0, s->stream>>>((bf16 *)a->scratch, c);
    else
        dequantize<8><<<grid, THREADS, 0, s->stream>>>((bf16 *)a->scratch, c);
    ml_cuda_launched(s, "dequantized weights");
    return a->scratch;
}
