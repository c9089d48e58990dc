/* optim.cu - optimizer steps, sums of squares and plain sums over flat memory.
 *
 * The same operations in the same order as on the CPU, each rounded separately; sums over blocks have an order of
 * their own. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, PER_THREAD = 4, SUM_THREADS = 1024 };

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

/* The weights of V adjacent masters; an f32 weight has the value of a bf16 number. */
template <int V>
__device__ static void store_weights(const ml_optim_param &p, int64_t i, float (&w)[V]) {
    if (!p.weight)
        return;
    if (p.dtype == ML_BF16) {
        ml_store((bf16 *)p.weight + i, w);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        w[k] = ml_f32(ml_as<bf16>(w[k]));
    ml_store((float *)p.weight + i, w);
}

__device__ static void adamw_one(const ml_adamw &o, float grad, float &moment1,
                                 float &moment2, float &master) {
    float g = grad * o.grad_scale;
    float m1 = o.beta1 * moment1 + (1.0f - o.beta1) * g;
    float m2 = o.beta2 * moment2 + (1.0f - o.beta2) * (g * g);
    float update = m1 * o.unbias1 / (sqrtf(m2 * o.unbias2) + o.eps);

    moment1 = m1;
    moment2 = m2;
    master -= o.lr * (update + o.weight_decay * master);
}

/* V adjacent elements.  All loads come first: the compiler cannot move them before stores. */
template <int V>
__device__ static void adamw_at(const ml_optim_param &p, const ml_adamw &o, int64_t i) {
    float g[V], m1[V], m2[V], w[V];

    ml_load(g, p.grad + i);
    ml_load(m1, p.moment1 + i);
    ml_load(m2, p.moment2 + i);
    ml_load(w, p.master + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        adamw_one(o, g[k], m1[k], m2[k], w[k]);
    ml_store(p.moment1 + i, m1);
    ml_store(p.moment2 + i, m2);
    ml_store(p.master + i, w);
    store_weights(p, i, w);
}

/* V elements a thread; the last elements may be fewer. */
template <int V> __global__ void adamw_kernel(ml_optim_param p, ml_adamw o) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;

    if (i + V <= p.n)
        adamw_at<V>(p, o, i);
    else
        for (; i < p.n; i++)
            adamw_at<1>(p, o, i);
}

static bool is_aligned(const void *p) {
    return (uintptr_t)p % (PER_THREAD * sizeof(float)) == 0;
}

/* 16 bytes an access, unless a piece of a parameter begins elsewhere. */
static void adamw(ml_stream *s, const ml_optim_param *p, const ml_adamw *o) {
    bool wide = is_aligned(p->grad) && is_aligned(p->moment1) && is_aligned(p->moment2) &&
                is_aligned(p->master) && is_aligned(p->weight);

    if (wide)
        adamw_kernel<PER_THREAD>
            <<<blocks_for(p->n), THREADS, 0, ml_cuda(s)->stream>>>(*p, *o);
    else
        adamw_kernel<1>
            <<<ml_cuda_blocks(p->n, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(*p, *o);
    ml_cuda_launched(ml_cuda(s), "AdamW");
}

__global__ static void sgd_kernel(ml_optim_param p, ml_sgd o) {
    each(p.n, [&](int64_t i) {
        float g = p.grad[i] * o.grad_scale + o.weight_decay * p.master[i];
        float m = o.momentum * p.moment1[i] + g;
        float w[1] = { p.master[i] - o.lr * m };
        p.moment1[i] = m;
        p.master[i] = w[0];
        store_weights(p, i, w);
    });
}

static void sgd(ml_stream *s, const ml_optim_param *p, const ml_sgd *o) {
    sgd_kernel<<<blocks_for(p->n), THREADS, 0, ml_cuda(s)->stream>>>(*p, *o);
    ml_cuda_launched(ml_cuda(s), "SGD");
}

/* A thread block per ML_NORM_BLOCK elements. */
__global__ static void square_kernel(double *block, const float *x, int64_t n) {
    __shared__ double warps[THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * ML_NORM_BLOCK;
    double sum = 0.0;

    for (int i = (int)threadIdx.x; i < ML_NORM_BLOCK; i += THREADS)
        if (first + i < n)
            sum += (double)x[first + i] * (double)x[first + i];
    sum = ml_block_sum<THREADS / 32>(sum, warps);
    if (threadIdx.x == 0)
        block[blockIdx.x] = sum;
}

static void square_sums(ml_stream *s, double *block, const float *x, int64_t n) {
    square_kernel<<<ml_cuda_blocks(n, ML_NORM_BLOCK), THREADS, 0, ml_cuda(s)->stream>>>(
        block, x, n);
    ml_cuda_launched(ml_cuda(s), "sums of squares");
}

/* A thread block per range of blocks. */
__global__ static void sum_blocks_kernel(double *to, const double *block,
                                         const int64_t *first) {
    __shared__ double warps[SUM_THREADS / 32];
    const int64_t end = first[blockIdx.x + 1];
    double sum = 0.0;

#pragma unroll 8
    for (int64_t i = first[blockIdx.x] + threadIdx.x; i < end; i += SUM_THREADS)
        sum += block[i];
    sum = ml_block_sum<SUM_THREADS / 32>(sum, warps);
    if (threadIdx.x == 0)
        to[blockIdx.x] = sum;
}

static void sum_blocks(ml_stream *s, double *sum, const double *block, const int64_t *first,
                       int32_t n) {
    sum_blocks_kernel<<<(unsigned)n, SUM_THREADS, 0, ml_cuda(s)->stream>>>(sum, block,
                                                                           first);
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

const ml_optim_ops ml_cuda_optim = { adamw, sgd,  square_sums,    sum_blocks,       sum,
                                     widen, zero, ml_cuda_encode, ml_cuda_fake_int4 };
