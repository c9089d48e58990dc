/* embed.cu - EMBED: embedding lookup, and its gradient without atomics. */
#include "backend/cuda/common.cuh"

enum { THREADS = 128, AT_ONCE = 4 * THREADS /* ids */ };

/* Tokens past the end of the table have its first row. */
__device__ static int32_t row_of(int32_t id, int64_t n_row) {
    return id < n_row ? id : 0;
}

/* A thread has V numbers of a row. */
template <class T, int V>
__global__ void embed_kernel(T *x, const T *table, int64_t n_row, const int32_t *id,
                             const int32_t *drawn, int64_t width, float scale) {
    int32_t own = id[blockIdx.x] >= 0 ? id[blockIdx.x] : drawn[-1 - id[blockIdx.x]];
    int64_t i = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    float v[V];

    if (i >= width)
        return;
    ml_load(v, table + row_of(own, n_row) * width + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] = scale == 1.0f ? v[k] : v[k] * scale;
    ml_store(x + (int64_t)blockIdx.x * width + i, v);
}

template <class T, int V> static void embed_by(ml_cuda_stream *s, const ml_op_args *a) {
    int64_t width = a->out[0].shape[1];

    embed_kernel<T, V>
        <<<dim3((unsigned)a->rows->n_token, ml_cuda_blocks(width, THREADS * V)), THREADS, 0,
           s->stream>>>((T *)a->out[0].data, (const T *)a->w[0].data, a->w[0].shape[0],
                        a->rows->id, a->rows->drawn, width, a->attr->embed_scale);
    ml_cuda_launched(s, "embed");
}

template <class T> static void embed(ml_stream *s, const ml_op_args *a) {
    if (a->rows->n_token == 0)
        return;
    if (a->out[0].shape[1] % ml_wide<T>::n == 0)
        embed_by<T, ml_wide<T>::n>(ml_cuda(s), a);
    else
        embed_by<T, 1>(ml_cuda(s), a);
}

void ml_cuda_embed_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, embed<T>(s, a));
}

/* Is `wanted` among the rows of the first n ids?  All threads of the block call it. */
__device__ static bool seen_before(const int32_t *id, int64_t n_row, int32_t wanted,
                                   int n) {
    bool found = false;

    for (int base = 0; base < n && !found; base += AT_ONCE) {
        bool any = false;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k += THREADS) {
            int t = base + k + (int)threadIdx.x;
            any |= t < n && row_of(id[t], n_row) == wanted;
        }
        found = __syncthreads_or(any);
    }
    return found;
}

/* Which of AT_ONCE ids from `base` on have that row, a bit each; whether any has. */
__device__ static bool find_matches(unsigned (&match)[AT_ONCE / 32], const int32_t *id,
                                    int64_t n_row, int32_t wanted, int base, int n) {
    unsigned any = 0;

#pragma unroll
    for (int k = 0; k < AT_ONCE; k += THREADS) {
        int t = base + k + (int)threadIdx.x;
        unsigned hits = __ballot_sync(0xffffffffu, t < n && row_of(id[t], n_row) == wanted);
        if (threadIdx.x % 32 == 0)
            match[k / 32 + (int)threadIdx.x / 32] = hits;
        any |= hits;
    }
    return __syncthreads_or(any != 0);
}

template <class T>
__device__ static void add_row(float *to, const T *dx, int64_t width, float scale) {
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        float d = ml_f32(dx[i]);
        to[i] += scale == 1.0f ? d : d * scale;
    }
}

/* A block per row of the batch; the block of the first one of a table's row adds up all
 * that have it, in order, so that each row of the table has one writer and one order of
 * sums. */
template <class T>
__global__ void embed_back_kernel(float *dw, int64_t n_row, const T *dx, const int32_t *id,
                                  int n, int64_t width, float scale) {
    __shared__ unsigned match[AT_ONCE / 32];
    int row = (int)blockIdx.x;
    int32_t wanted = row_of(id[row], n_row);
    float *to = dw + (int64_t)wanted * width;

    if (seen_before(id, n_row, wanted, row))
        return;
    for (int base = row; base < n; base += AT_ONCE) {
        if (!find_matches(match, id, n_row, wanted, base, n))
            continue;
        for (int w = 0; w < AT_ONCE / 32; w++)
            for (unsigned left = match[w]; left; left &= left - 1)
                add_row(to, dx + (int64_t)(base + w * 32 + __ffs((int)left) - 1) * width,
                        width, scale);
        __syncthreads();
    }
}

template <class T> static void embed_back(ml_stream *s, const ml_op_args *a) {
    if (a->rows->n_token == 0)
        return;
    embed_back_kernel<T><<<(unsigned)a->rows->n_token, THREADS, 0, ml_cuda(s)->stream>>>(
        (float *)a->dw[0].data, a->dw[0].shape[0], (const T *)a->dout[0].data, a->rows->id,
        a->rows->n_token, a->dout[0].shape[1], a->attr->embed_scale);
    ml_cuda_launched(ml_cuda(s), "embed backward");
}

void ml_cuda_embed_backward(ml_stream *s, const ml_op_args *a) {
    if (a->dw[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, embed_back<T>(s, a));
}
