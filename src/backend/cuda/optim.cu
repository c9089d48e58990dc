/* optim.cu - optimizer steps, sums of squares and plain sums over flat memory.
 *
 * The same operations in the same order as on the CPU, each rounded separately. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, PER_THREAD = 4 };

static unsigned blocks_for(int64_t n) {
    return ml_cuda_blocks(n, THREADS * PER_THREAD);
}

/* f(i) for the elements of this thread; adjacent lanes have adjacent ones (coalesced). */
template <class F> __device__ static void each(int64_t n, F f) {
    int64_t first = (int64_t)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * THREADS < n)
            f(first + k * THREADS);
}

__device__ static void store_weight(const ml_optim_param &p, int64_t i, float w) {
    if (!p.weight)
        return;
    if (p.dtype == ML_BF16)
        ((bf16 *)p.weight)[i] = ml_as<bf16>(w);
    else
        ((float *)p.weight)[i] = ml_f32(ml_as<bf16>(w));
}

__device__ static void adamw_one(const ml_optim_param &p, const ml_adamw &o, int64_t i,
                                 float grad, float moment1, float moment2, float master) {
    float g = grad * o.grad_scale;
    float m1 = o.beta1 * moment1 + (1.0f - o.beta1) * g;
    float m2 = o.beta2 * moment2 + (1.0f - o.beta2) * (g * g);
    float update = m1 * o.unbias1 / (sqrtf(m2 * o.unbias2) + o.eps);
    float w = master - o.lr * (update + o.weight_decay * master);

    p.moment1[i] = m1;
    p.moment2[i] = m2;
    p.master[i] = w;
    store_weight(p, i, w);
}

/* All loads of a thread come first: the compiler cannot move them before stores. */
__global__ static void adamw_kernel(ml_optim_param p, ml_adamw o) {
    int64_t first = (int64_t)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    float g[PER_THREAD], m1[PER_THREAD], m2[PER_THREAD], w[PER_THREAD];

#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        int64_t i = first + k * THREADS;
        if (i < p.n) {
            g[k] = p.grad[i];
            m1[k] = p.moment1[i];
            m2[k] = p.moment2[i];
            w[k] = p.master[i];
        }
    }
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * THREADS < p.n)
            adamw_one(p, o, first + k * THREADS, g[k], m1[k], m2[k], w[k]);
}

static void adamw(ml_stream *s, const ml_optim_param *p, const ml_adamw *o) {
    adamw_kernel<<<blocks_for(p->n), THREADS, 0, ml_cuda(s)->stream>>>(*p, *o);
    ml_cuda_launched(ml_cuda(s), "AdamW");
}

__global__ static void sgd_kernel(ml_optim_param p, ml_sgd o) {
    each(p.n, [&](int64_t i) {
        float g = p.grad[i] * o.grad_scale + o.weight_decay * p.master[i];
        float m = o.momentum * p.moment1[i] + g;
        float w = p.master[i] - o.lr * m;
        p.moment1[i] = m;
        p.master[i] = w;
        store_weight(p, i, w);
    });
}

static void sgd(ml_stream *s, const ml_optim_param *p, const ml_sgd *o) {
    sgd_kernel<<<blocks_for(p->n), THREADS, 0, ml_cuda(s)->stream>>>(*p, *o);
    ml_cuda_launched(ml_cuda(s), "SGD");
}

/* A thread block per ML_NORM_BLOCK elements; threads, then warps, in a fixed tree. */
__global__ static void square_kernel(double *block, const float *x, int64_t n) {
    __shared__ double warp[THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * ML_NORM_BLOCK;
    double sum = 0.0;

    for (int i = (int)threadIdx.x; i < ML_NORM_BLOCK; i += THREADS)
        if (first + i < n)
            sum += (double)x[first + i] * (double)x[first + i];
    for (int w = 16; w; w >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, w);
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    sum = 0.0;
    for (int i = 0; i < THREADS / 32; i++)
        sum += warp[i];
    block[blockIdx.x] = sum;
}

static void square_sums(ml_stream *s, double *block, const float *x, int64_t n) {
    square_kernel<<<ml_cuda_blocks(n, ML_NORM_BLOCK), THREADS, 0, ml_cuda(s)->stream>>>(
        block, x, n);
    ml_cuda_launched(ml_cuda(s), "sums of squares");
}

__global__ static void sum_kernel(float *y, const float *x, int64_t n) {
    each(n, [&](int64_t i) { y[i] += x[i]; });
}

static void sum(ml_stream *s, float *y, const float *x, int64_t n) {
    sum_kernel<<<blocks_for(n), THREADS, 0, ml_cuda(s)->stream>>>(y, x, n);
    ml_cuda_launched(ml_cuda(s), "sum of gradients");
}

template <class T> __global__ void widen_kernel(float *y, const T *x, int64_t n) {
    each(n, [&](int64_t i) { y[i] = ml_f32(x[i]); });
}

static void widen(ml_stream *s, float *y, const ml_tensor *x) {
    int64_t n = (int64_t)(ml_tensor_bytes(x) / ml_dtype_bytes(x->dtype));
    ML_CUDA_TYPED(
        x->dtype, widen_kernel<T>
        <<<blocks_for(n), THREADS, 0, ml_cuda(s)->stream>>>(y, (const T *)x->data, n));
    ml_cuda_launched(ml_cuda(s), "master weights");
}

static void zero(ml_stream *s, void *x, size_t bytes) {
    ml_cuda_note(ml_cuda(s), cudaMemsetAsync(x, 0, bytes, ml_cuda(s)->stream), "zeros");
}

const ml_optim_ops ml_cuda_optim = { adamw, sgd,  square_sums,    sum,
                                     widen, zero, ml_cuda_encode, ml_cuda_fake_int4 };
