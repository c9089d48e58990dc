/* linear_f32_out.cu - LINEAR with f32 weights and outputs over bf16 rows: a critic's head.
 *
 * One output, or a few: no tensor cores, and no rounding between a sum and its f32
 * result. */
#include "backend/cuda/gemm/linear_f32_out.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, PART_ROWS = ML_F32_OUT_ROWS };

/* A warp per output; a lane takes every 32nd input. */
__global__ static void forward_kernel(float *y, const bf16 *x, const float *w,
                                      const float *bias, int64_t m, int64_t n, int64_t k) {
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float sum = 0.0f;

    if (i >= m * n)
        return;
    for (int64_t c = lane; c < k; c += 32)
        sum = fmaf(ml_f32(x[i / n * k + c]), w[i % n * k + c], sum);
    sum = ml_warp_sum(sum);
    if (lane == 0)
        y[i] = bias ? sum + bias[i % n] : sum;
}

void ml_cuda_linear_f32_out_forward(ml_stream *s, const ml_op_args *a) {
    int64_t m = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];

    if (m)
        forward_kernel<<<ml_cuda_blocks(m * n, WARPS), THREADS, 0, ml_cuda(s)->stream>>>(
            (float *)a->out[0].data, (const bf16 *)a->in[0].data,
            (const float *)a->w[0].data, (const float *)a->w[1].data, m, n, k);
    ml_cuda_launched(ml_cuda(s), "a narrow product");
}

/* dx [m, k] = dy [m, n] w [n, k]. */
__global__ static void input_kernel(bf16 *dx, const float *dy, const float *w, int64_t m,
                                    int64_t n, int64_t k, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum;

    if (i >= m * k)
        return;
    sum = add ? ml_f32(dx[i]) : 0.0f;
    for (int64_t j = 0; j < n; j++)
        sum = fmaf(dy[i / k * n + j], w[j * k + i % k], sum);
    dx[i] = ml_as<bf16>(sum);
}

/* Partial sums of dy' [n, m] x [m, k] over PART_ROWS rows each; rows in order. */
__global__ static void weight_parts(float *part, const float *dy, const bf16 *x, int64_t m,
                                    int64_t n, int64_t k) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * PART_ROWS;
    int64_t end = first + PART_ROWS < m ? first + PART_ROWS : m;
    float sum = 0.0f;

    if (i >= n * k)
        return;
    for (int64_t t = first; t < end; t++)
        sum = fmaf(dy[t * n + i / k], ml_f32(x[t * k + i % k]), sum);
    part[(int64_t)blockIdx.y * n * k + i] = sum;
}

void ml_cuda_linear_f32_out_backward(ml_stream *s, const ml_op_args *a) {
    int64_t m = a->in[0].shape[0], n = a->w[0].shape[0], k = a->w[0].shape[1];
    unsigned parts = ml_cuda_blocks(m, PART_ROWS), blocks = ml_cuda_blocks(n * k, THREADS);
    cudaStream_t stream = ml_cuda(s)->stream;
    const float *dy = (const float *)a->dout[0].data;
    float *part = (float *)a->scratch;

    if (a->din[0].data && m)
        input_kernel<<<ml_cuda_blocks(m * k, THREADS), THREADS, 0, stream>>>(
            (bf16 *)a->din[0].data, dy, (const float *)a->w[0].data, m, n, k,
            a->din_add[0]);
    if (a->dw[0].data && m) {
        weight_parts<<<dim3(blocks, parts), THREADS, 0, stream>>>(
            part, dy, (const bf16 *)a->in[0].data, m, n, k);
        ml_cuda_add_parts(ml_cuda(s), (float *)a->dw[0].data, part, (int)parts, n * k);
    }
    ml_cuda_launched(ml_cuda(s), "a narrow product backward");
}
