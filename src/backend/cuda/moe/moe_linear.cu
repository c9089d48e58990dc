/* moe_linear.cu - MOE_LINEAR and HEAD_LINEAR: a grouped GEMM, one kernel for all experts or
 * heads.
 *
 * bf16 goes to tensor cores (moe_mma.cu); the kernel here is for f32 and odd widths:
 * one FMA chain per output over ascending k. */
#include "backend/cuda/dense.cuh"
#include "backend/cuda/fp8/fp8.cuh"
#include "backend/cuda/moe/moe.cuh"

enum { TILE = 32, ROWS = 8 };

/* The expert of tile `at`, and the tile's index in it; false: no such tile. */
__device__ static bool find_tile(const int32_t *start, int n_expert, int at, int *expert,
                                 int *tile) {
    for (int e = 0; e < n_expert; e++) {
        int tiles = (start[e + 1] - start[e] + TILE - 1) / TILE;
        if (at < tiles) {
            *expert = e;
            *tile = at;
            return true;
        }
        at -= tiles;
    }
    return false;
}

template <class IN, class OUT> __global__ void expert_kernel(ml_expert_gemm<IN, OUT> g) {
    __shared__ float ta[TILE][TILE + 1], tb[TILE][TILE + 1];
    int x = (int)threadIdx.x, y = (int)threadIdx.y, expert = (int)blockIdx.z,
        tile = (int)blockIdx.y;
    int64_t first, rows, m, k, m0, n0 = (int64_t)blockIdx.x * TILE;
    float sum[TILE / ROWS] = {};
    const IN *a, *b;
    OUT *c;

    if (!ml_expert_is_fixed(g) &&
        !find_tile(g.start, g.n_expert, (int)blockIdx.y, &expert, &tile))
        return;
    first = g.start ? g.start[expert] : 0;
    rows = g.start ? g.start[expert + 1] - first : g.rows;
    m = g.m ? g.m : rows;
    k = g.k ? g.k : rows;
    m0 = (int64_t)tile * TILE;
    a = g.a + first * g.a_row + expert * g.a_expert;
    b = g.b + first * g.b_row + expert * g.b_expert;
    c = g.c + (ml_expert_is_fixed(g) ? expert * g.c_expert : first * g.ldc);
    for (int j = 0; g.add && j < TILE / ROWS; j++)
        if (m0 + y + ROWS * j < m && n0 + x < g.n)
            sum[j] = ml_f32(c[(m0 + y + ROWS * j) * g.ldc + n0 + x]);
    for (int64_t k0 = 0; k0 < k; k0 += TILE) {
        for (int j = y; j < TILE; j += ROWS) {
            int ra = g.a_k == 1 ? j : x, ka = g.a_k == 1 ? x : j;
            int rb = g.b_k == 1 ? j : x, kb = g.b_k == 1 ? x : j;
            bool in_a = m0 + ra < m && k0 + ka < k, in_b = n0 + rb < g.n && k0 + kb < k;
            ta[ra][ka] = in_a ? ml_f32(a[(m0 + ra) * g.a_m + (k0 + ka) * g.a_k]) : 0.0f;
            tb[rb][kb] = in_b ? ml_f32(b[(n0 + rb) * g.b_n + (k0 + kb) * g.b_k]) : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < TILE; i++)
#pragma unroll
            for (int j = 0; j < TILE / ROWS; j++)
                sum[j] = fmaf(ta[y + ROWS * j][i], tb[x][i], sum[j]);
        __syncthreads();
    }
    for (int j = 0; j < TILE / ROWS; j++)
        if (m0 + y + ROWS * j < m && n0 + x < g.n) {
            if (g.bias)
                sum[j] += g.bias[expert * g.n + n0 + x];
            c[(m0 + y + ROWS * j) * g.ldc + n0 + x] = ml_as<OUT>(sum[j]);
        }
}

/* Tensor cores or not: depends on the model only. */
template <class OUT>
static bool takes_mma(ml_cuda_stream *s, const ml_expert_gemm<bf16, OUT> &g, int64_t rows) {
    bool takes = g.n % 8 == 0 && g.m % 8 == 0 && g.k % 8 == 0;
    if (takes)
        ml_expert_mma(s, g, rows);
    return takes;
}

static bool takes_mma(ml_cuda_stream *, const ml_expert_gemm<float, float> &, int64_t) {
    return false;
}

template <class IN, class OUT>
static void run(ml_stream *s, const ml_expert_gemm<IN, OUT> &g, int64_t rows) {
    if (rows == 0 || takes_mma(ml_cuda(s), g, rows))
        return;
    expert_kernel<IN, OUT>
        <<<ml_expert_grid(g, rows, TILE, TILE), dim3(TILE, ROWS), 0, ml_cuda(s)->stream>>>(
            g);
    ml_cuda_launched(ml_cuda(s), g.start ? "moe-linear" : "head-linear");
}

template <class T> static void linear(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *w = &a->w[0];
    ml_expert_gemm<T, T> g = {};

    if (ml_cuda_expert_codes(ml_cuda(s), a))
        return;
    g.a = (const T *)ml_fp8_values(ml_cuda(s), a);
    g.b = (const T *)ml_cuda_dense(ml_cuda(s), a, (const int32_t *)a->in[1].data);
    g.c = (T *)a->out[0].data;
    g.bias = (const float *)a->w[1].data;
    g.start = (const int32_t *)a->in[1].data;
    g.n_expert = (int)w->shape[0];
    g.n = w->shape[1];
    g.k = w->shape[2];
    g.a_m = g.a_row = g.b_n = g.k;
    g.a_k = g.b_k = 1;
    g.b_expert = g.n * g.k;
    g.ldc = g.n;
    run(s, g, a->in[0].shape[0]);
}

void ml_cuda_moe_linear_forward(ml_stream *s, const ml_op_args *a) {
    if (ml_fp8_takes(ml_cuda(s), a->w[0].dtype)) {
        const ml_fp8_gemm g = ml_fp8_gemm_of(a, ml_fp8_encode(ml_cuda(s), a),
                                             a->w[0].shape[1], a->out[0].data);
        ml_fp8_multiply(ml_cuda(s), &g);
        return;
    }
    ML_CUDA_TYPED(a->in[0].dtype, linear<T>(s, a));
}

/* dx = dy w. */
template <class T> static void back_input(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *w = &a->w[0];
    ml_expert_gemm<T, T> g = {};

    g.a = (const T *)a->dout[0].data;
    g.b = (const T *)ml_cuda_dense(ml_cuda(s), a, (const int32_t *)a->in[1].data);
    g.c = (T *)a->din[0].data;
    g.start = (const int32_t *)a->in[1].data;
    g.n_expert = (int)w->shape[0];
    g.n = w->shape[2];
    g.k = w->shape[1];
    g.a_m = g.a_row = g.k;
    g.a_k = 1;
    g.b_n = 1;
    g.b_k = g.n;
    g.b_expert = g.n * g.k;
    g.ldc = g.n;
    g.add = a->din_add[0];
    run(s, g, a->dout[0].shape[0]);
}

/* dw (+)= dy' x, for each expert. */
template <class T> static void back_weight(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *w = &a->w[0];
    ml_expert_gemm<T, float> g = {};

    g.a = (const T *)a->dout[0].data;
    g.b = (const T *)a->in[0].data;
    g.c = (float *)a->dw[0].data;
    g.start = (const int32_t *)a->in[1].data;
    g.n_expert = (int)w->shape[0];
    g.m = w->shape[1];
    g.n = w->shape[2];
    g.a_m = 1;
    g.a_k = g.a_row = g.m;
    g.b_n = 1;
    g.b_k = g.b_row = g.n;
    g.c_expert = g.m * g.n;
    g.ldc = g.n;
    g.add = !a->dw_write[0];
    if (a->dout[0].shape[0] == 0 && !g.add)
        ml_cuda_zero_dw(ml_cuda(s), a, 0);
    run(s, g, a->dout[0].shape[0]);
}

/* A thread per column of an expert; rows in order. */
template <class T>
__global__ void bias_kernel(float *db, const T *dy, const int32_t *start, int64_t n) {
    int64_t col = (int64_t)blockIdx.x * 128 + threadIdx.x;
    float sum = 0.0f;

    if (col >= n)
        return;
    for (int64_t t = start[blockIdx.y]; t < start[blockIdx.y + 1]; t++)
        sum += ml_f32(dy[t * n + col]);
    db[blockIdx.y * n + col] += sum;
}

template <class T> static void back_bias(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *db = &a->dw[1];
    int64_t n = a->dout[0].shape[1];

    bias_kernel<T><<<dim3(ml_cuda_blocks(n, 128), (unsigned)a->w[0].shape[0]), 128, 0,
                     ml_cuda(s)->stream>>>((float *)db->data, (const T *)a->dout[0].data,
                                           (const int32_t *)a->in[1].data, n);
    ml_cuda_launched(ml_cuda(s), "moe-linear bias");
}

void ml_cuda_moe_linear_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, back_input<T>(s, a));
    if (a->dw[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, back_weight<T>(s, a));
    if (a->dw[1].data)
        ML_CUDA_TYPED(a->dout[0].dtype, back_bias<T>(s, a));
}

/* ---- head-linear: the columns and the weight of each head ---- */

template <class IN, class OUT>
static ml_expert_gemm<IN, OUT> head_gemm(const ml_op_args *a, const void *x, const void *w,
                                         void *y) {
    ml_expert_gemm<IN, OUT> g = {};

    g.a = (const IN *)x;
    g.b = (const IN *)w;
    g.c = (OUT *)y;
    g.n_expert = (int)a->w[0].shape[0];
    g.rows = a->in[0].shape[0];
    return g;
}

template <class T> static void heads(ml_stream *s, const ml_op_args *a) {
    ml_expert_gemm<T, T> g =
        head_gemm<T, T>(a, a->in[0].data, a->w[0].data, a->out[0].data);

    g.n = a->w[0].shape[1];
    g.k = a->w[0].shape[2];
    g.a_m = g.n_expert * g.k;
    g.a_expert = g.b_n = g.k;
    g.a_k = g.b_k = 1;
    g.b_expert = g.n * g.k;
    g.ldc = g.n_expert * g.n;
    g.c_expert = g.n;
    run(s, g, g.rows);
}

/* dx = dy w. */
template <class T> static void heads_back_input(ml_stream *s, const ml_op_args *a) {
    ml_expert_gemm<T, T> g =
        head_gemm<T, T>(a, a->dout[0].data, a->w[0].data, a->din[0].data);

    g.n = a->w[0].shape[2];
    g.k = a->w[0].shape[1];
    g.a_m = g.n_expert * g.k;
    g.a_expert = g.k;
    g.a_k = g.b_n = 1;
    g.b_k = g.c_expert = g.n;
    g.b_expert = g.n * g.k;
    g.ldc = g.n_expert * g.n;
    g.add = a->din_add[0];
    run(s, g, g.rows);
}

/* dw (+)= dy' x. */
template <class T> static void heads_back_weight(ml_stream *s, const ml_op_args *a) {
    ml_expert_gemm<T, float> g =
        head_gemm<T, float>(a, a->dout[0].data, a->in[0].data, a->dw[0].data);

    g.m = g.a_expert = a->w[0].shape[1];
    g.n = g.b_expert = g.ldc = a->w[0].shape[2];
    g.a_m = g.b_n = 1;
    g.a_k = g.n_expert * g.m;
    g.b_k = g.n_expert * g.n;
    g.c_expert = g.m * g.n;
    g.add = !a->dw_write[0];
    if (g.rows == 0 && !g.add)
        ml_cuda_zero_dw(ml_cuda(s), a, 0);
    run(s, g, g.rows);
}

void ml_cuda_head_linear_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, heads<T>(s, a));
}

void ml_cuda_head_linear_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, heads_back_input<T>(s, a));
    if (a->dw[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, heads_back_weight<T>(s, a));
}
