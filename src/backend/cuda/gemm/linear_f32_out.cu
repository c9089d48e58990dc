/* linear_f32_out.cu - LINEAR with f32 weights over bf16 rows: a critic's head and the
 * coefficients of hyper-connections, with f32 outputs; an indexer's weights, with bf16 ones.
 *
 * One output, or a few: no tensor cores, and no rounding before that of the result. */
#include "backend/cuda/gemm/linear_f32_out.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, PART_ROWS = ML_F32_OUT_ROWS };

/* A warp per output; a lane takes every 32nd input. */
template <class OUT>
__global__ void forward_kernel(OUT *y, const bf16 *x, const float *w, const float *bias,
                               int64_t m, int64_t n, int64_t k) {
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float sum = 0.0f;

    if (i >= m * n)
        return;
    for (int64_t c = lane; c < k; c += 32)
        sum = fmaf(ml_f32(x[i / n * k + c]), w[i % n * k + c], sum);
    sum = ml_warp_sum(sum);
    if (lane == 0)
        y[i] = ml_as<OUT>(bias ? sum + bias[i % n] : sum);
}

void ml_cuda_linear_f32_out_forward(ml_stream *s, const ml_op_args *a) {
    int64_t m = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];

    if (m)
        ML_CUDA_TYPED(a->out[0].dtype, forward_kernel<T>
                      <<<ml_cuda_blocks(m * n, WARPS), THREADS, 0, ml_cuda(s)->stream>>>(
                          (T *)a->out[0].data, (const bf16 *)a->in[0].data,
                          (const float *)a->w[0].data, (const float *)a->w[1].data, m, n,
                          k));
    ml_cuda_launched(ml_cuda(s), "a narrow product");
}

/* dx [m, k] = dy [m, n] w [n, k]. */
template <class OUT>
__global__ void input_kernel(bf16 *dx, const OUT *dy, const float *w, int64_t m, int64_t n,
                             int64_t k, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum;

    if (i >= m * k)
        return;
    sum = add ? ml_f32(dx[i]) : 0.0f;
    for (int64_t j = 0; j < n; j++)
        sum = fmaf(ml_f32(dy[i / k * n + j]), w[j * k + i % k], sum);
    dx[i] = ml_as<bf16>(sum);
}

/* Sums of dy' [n, m] x [m, k] over `rows` rows each; rows in order. */
template <class OUT>
__global__ void weight_parts(float *part, const OUT *dy, const bf16 *x, int64_t m,
                             int64_t n, int64_t k, int64_t rows, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * rows;
    int64_t end = first + rows < m ? first + rows : m;
    float sum = 0.0f, *to = part + (int64_t)blockIdx.y * n * k + i;

    if (i >= n * k)
        return;
    for (int64_t t = first; t < end; t++)
        sum = fmaf(ml_f32(dy[t * n + i / k]), ml_f32(x[t * k + i % k]), sum);
    *to = add ? *to + sum : sum;
}

/* Only f32 outputs have scratch memory for partial sums: the plan knows them by their
 * types. */
template <class OUT> static void back_weight(ml_stream *s, const ml_op_args *a) {
    int64_t m = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];
    bool apart = a->dout[0].dtype == ML_F32;
    int64_t rows = apart ? PART_ROWS : m;
    unsigned parts = ml_cuda_blocks(m, rows);
    float *dw = (float *)a->dw[0].data, *part = apart ? (float *)a->scratch : dw;

    if (a->dw_write[0])
        ml_cuda_zero_dw(ml_cuda(s), a, 0);
    weight_parts<OUT>
        <<<dim3(ml_cuda_blocks(n * k, THREADS), parts), THREADS, 0, ml_cuda(s)->stream>>>(
            part, (const OUT *)a->dout[0].data, (const bf16 *)a->in[0].data, m, n, k, rows,
            !apart);
    if (apart)
        ml_cuda_add_parts(ml_cuda(s), dw, part, (int)parts, n * k);
}

void ml_cuda_linear_f32_out_backward(ml_stream *s, const ml_op_args *a) {
    int64_t m = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];

    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, input_kernel<T>
                      <<<ml_cuda_blocks(m * k, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(
                          (bf16 *)a->din[0].data, (const T *)a->dout[0].data,
                          (const float *)a->w[0].data, m, n, k, a->din_add[0]));
    if (a->dw[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, back_weight<T>(s, a));
    ml_cuda_launched(ml_cuda(s), "a narrow product backward");
}
