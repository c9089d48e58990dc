/* linear_rnn_back.cu - LINEAR_RNN backward: the recurrences (linear_rnn.cu), all chunks at once
 * (linear_rnn_chunk.cu), then sums of dq and dk over the heads of a key, and the skip weights'.
 * Every number has one writer. */
#include "backend/cuda/rnn/linear_rnn.cuh"

#include <math.h>

/* ---- sums over the heads of a key ---- */

/* Turns the gradient g of a normalized row into that of x: with h = x r and gs = g scale,
 * dx = r (gs - h (gs . h)). */
template <int QUADS>
__device__ static void norm_back(float (&g)[QUADS][4], const float (&x)[QUADS][4], float r,
                                 float scale) {
    float dot = 0.0f;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            g[h][e] = g[h][e] * scale;
            dot = fmaf(g[h][e], x[h][e], dot);
        }
    dot = ml_warp_sum(dot) * r;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            g[h][e] = r * (g[h][e] - x[h][e] * r * dot);
}

template <class T, int QUADS>
__device__ static void put_row(const rnn_call<T> &c, T *to, const float (&g)[QUADS][4]) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = 128 * h + 4 * lane + e;
            if (i < c.dk)
                to[i] = ml_as<T>(c.add_x ? ml_f32(to[i]) + g[h][e] : g[h][e]);
        }
}

/* Adds the part of a head. */
template <class T, int QUADS>
__device__ static void add_head(const rnn_call<T> &c, float (&sum)[QUADS][4],
                                const float *part, int64_t row, int head) {
    float one[QUADS][4];

    rnn_load_row(one, part + (row * c.n_head + head) * c.dk, c.dk, c.wide);
#pragma unroll
    for (int h = 0; h < QUADS; h++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[h][e] += one[h][e];
}

/* A warp has a key of a row. */
template <class T, int QUADS> __global__ void gather_kernel(rnn_call<T> c) {
    int64_t unit = (int64_t)blockIdx.x * RNN_WARPS + threadIdx.x / 32, row = unit / c.n_key;
    int key = (int)(unit % c.n_key), each = c.n_head / c.n_key;

    if (row >= c.n)
        return;
    for (int i = 0; i < 2; i++) {
        int64_t at = row * c.width + (i ? c.k_at : c.q_at) + (int64_t)key * c.dk;
        float x[QUADS][4], d[QUADS][4] = {};
        for (int head = key * each; head < (key + 1) * each; head++)
            add_head(c, d, i ? c.dk_part : c.dq_part, row, head);
        if (c.delta) {
            rnn_load_row(x, c.x + at, c.dk, c.wide);
            norm_back(d, x, rnn_inverse_length(x, c.eps), i ? 1.0f : c.q_scale);
        }
        put_row(c, c.dx + at, d);
    }
}

/* ---- the skip weights ---- */

/* dD of a head over a chunk of rows. */
template <class T> __global__ void skip_kernel(rnn_call<T> c) {
    __shared__ float smem[RNN_WARPS];
    int head = (int)blockIdx.y;
    int64_t from = (int64_t)blockIdx.x * ML_RNN_SKIP_ROWS;
    int64_t n = c.n - from < ML_RNN_SKIP_ROWS ? c.n - from : ML_RNN_SKIP_ROWS;
    float sum = 0.0f;

    for (int64_t at = threadIdx.x; at < n * c.dv; at += RNN_THREADS) {
        int64_t row = from + at / c.dv, col = (int64_t)head * c.dv + at % c.dv;
        sum = fmaf(ml_f32(c.dout[row * c.n_head * c.dv + col]),
                   ml_f32(c.x[row * c.width + c.v_at + col]), sum);
    }
    sum = ml_block_sum<RNN_WARPS>(sum, smem);
    if (threadIdx.x == 0)
        c.skip_part[(int64_t)blockIdx.x * c.n_head + head] = sum;
}

/* ---- launches ---- */

template <class T, int QUADS> static void gather(ml_cuda_stream *s, const rnn_call<T> &c) {
    gather_kernel<T, QUADS>
        <<<ml_cuda_blocks(c.n * c.n_key, RNN_WARPS), RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
}

template <class T> static void skip_back(ml_cuda_stream *s, const rnn_call<T> &c) {
    unsigned chunks = ml_cuda_blocks(c.n, ML_RNN_SKIP_ROWS);

    skip_kernel<T><<<dim3(chunks, (unsigned)c.n_head), RNN_THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "linear-rnn backward");
    ml_cuda_add_parts(s, c.dskip, c.skip_part, (int)chunks, c.n_head);
}

template <class T> static void backward(ml_cuda_stream *s, const ml_op_args *a) {
    rnn_call<T> c = rnn_open<T>(a);
    ml_rnn_scratch at = ml_cuda_rnn_scratch(a);
    char *base = (char *)a->scratch;

    c.dout = (const T *)a->dout[0].data;
    c.dx = (T *)a->din[0].data;
    c.drate = (float *)a->din[1].data;
    c.add_x = a->din_add[0];
    c.add_rate = a->din_add[1];
    c.e = (float *)base;
    c.du = (float *)(base + at.du);
    c.dq_part = (float *)(base + at.dq);
    c.dk_part = (float *)(base + at.dk);
    c.mark = (float *)(base + at.mark);
    c.dmark = (float *)(base + at.dmark);
    c.skip_part = (float *)(base + at.skip);
    if (!c.n || !c.n_head)
        return;
    if (c.dx || c.drate) {
        rnn_walk<T>(s, c);
        rnn_chunks<T>(s, c);
    }
    if (c.dx && c.dk <= 128)
        gather<T, 1>(s, c);
    else if (c.dx)
        gather<T, 2>(s, c);
    if (a->dw[0].data) {
        c.dskip = (float *)a->dw[0].data + a->attr->linear_rnn.first_head;
        skip_back(s, c);
    }
}

void ml_cuda_linear_rnn_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, backward<T>(ml_cuda(s), a));
}
