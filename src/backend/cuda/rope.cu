/* rope.cu - ROPE_TABLE and ROPE. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, FREQUENCIES = 512 };

/* ---- the table ---- */

/* A kernel argument: frequencies `first` and following ones. */
struct frequencies {
    float at[FREQUENCIES];
    int first, n;
};

/* The factor of the cosines and sines of a position. */
__device__ static double table_scale(const ml_rope &r, float pos) {
    double scale = (double)r.scale;

    if (r.temper_step > 0.0f)
        scale *= 1.0 + (double)r.temper *
                           (double)(float)log(
                               (double)(1.0f + floorf((pos + 1.0f) / r.temper_step)));
    return scale;
}

/* The angle is one f32 product; its sine and cosine are taken in f64 and rounded once. */
__global__ static void table_kernel(float *cs, const int32_t *pos, int64_t n, ml_rope rope,
                                    const __grid_constant__ frequencies freq) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / freq.n;
    int k = (int)(i % freq.n), half = rope.dim / 2, at;
    double sine, cosine, scale;

    if (i >= n * freq.n)
        return;
    at = rope.stride > 1 ? pos[t] - pos[t] % rope.stride : pos[t];
    scale = table_scale(rope, (float)at);
    sincos((double)((float)at * freq.at[k]), &sine, &cosine);
    cs[t * 2 * half + freq.first + k] = (float)(cosine * scale);
    cs[t * 2 * half + half + freq.first + k] = (float)(sine * scale);
}

void ml_cuda_rope_table_forward(ml_stream *s, const ml_op_args *a) {
    const ml_rope *rope = a->attr->rope.rope;
    int64_t n = a->rows->n_token;
    int half = rope->dim / 2;
    frequencies freq;

    for (freq.first = 0; n && freq.first < half; freq.first += freq.n) {
        freq.n = half - freq.first < FREQUENCIES ? half - freq.first : (int)FREQUENCIES;
        for (int i = 0; i < freq.n; i++)
            freq.at[i] = rope->freq[freq.first + i];
        table_kernel<<<ml_cuda_blocks(n * freq.n, THREADS), THREADS, 0,
                       ml_cuda(s)->stream>>>((float *)a->out[0].data, a->rows->pos, n,
                                             *rope, freq);
        ml_cuda_launched(ml_cuda(s), "rope-table");
    }
}

void ml_cuda_rope_table_backward(ml_stream *s, const ml_op_args *a) {
    (void)s; /* positions have no gradient */
    (void)a;
}

/* ---- rotation ---- */

/* Rotates rows: forward from x to y, backward (sign -1) from dy to dx. */
template <class T> struct rope_call {
    T *y;
    const T *x;
    const float *cs;
    int64_t n;          /* threads; each rotates, or copies, two numbers of a head */
    int64_t width;      /* of a row */
    int head_dim, half; /* half: pairs of a head that rotate */
    int first;          /* the first rotated element of a head */
    int per_head; /* threads of a head; the last copies one number if its size is odd */
    bool interleaved, add;
    float sign;
};

template <class T> __device__ static void put(T *to, float x, bool add) {
    *to = ml_as<T>(add ? ml_f32(*to) + x : x);
}

/* The i-th element of a head that is not rotated. */
template <class T> __device__ static int unrotated(const rope_call<T> &c, int i) {
    return i < c.first ? i : i + 2 * c.half;
}

template <class T> __global__ void rope_kernel(rope_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t per_row = c.width / c.head_dim * c.per_head, row = i / per_row;
    int64_t pair = i % per_row, head = row * c.width + pair / c.per_head * c.head_dim;
    int k = (int)(pair % c.per_head);
    int64_t at0, at1;
    float x0, x1;

    if (i >= c.n)
        return;
    if (k < c.half) {
        at0 = head + c.first + (c.interleaved ? 2 * k : k);
        at1 = head + c.first + (c.interleaved ? 2 * k + 1 : k + c.half);
    } else {
        at0 = head + unrotated(c, 2 * (k - c.half));
        at1 = head + unrotated(c, 2 * (k - c.half) + 1);
    }
    x0 = ml_f32(c.x[at0]);
    x1 = at1 < head + c.head_dim ? ml_f32(c.x[at1]) : 0.0f;
    if (k < c.half) {
        float cosine = c.cs[row * 2 * c.half + k];
        float sine = c.sign * c.cs[row * 2 * c.half + c.half + k];
        float y0 = fmaf(x0, cosine, -(x1 * sine)), y1 = fmaf(x1, cosine, x0 * sine);
        x0 = y0;
        x1 = y1;
    }
    put(c.y + at0, x0, c.add);
    if (at1 < head + c.head_dim)
        put(c.y + at1, x1, c.add);
}

/* RoPE of whole heads (rotate-half): V pairs per thread. */
template <class T, int V> __global__ void rope_wide_kernel(rope_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    int64_t per_row = c.width / 2, row = i / per_row, pair = i % per_row;
    int k = (int)(pair % c.half);
    int64_t at = row * c.width + pair / c.half * c.head_dim + k;
    const float *cs = c.cs + row * 2 * c.half + k;
    float x0[V], x1[V], y0[V], y1[V], old[V];

    if (i >= c.n)
        return;
    ml_load(x0, c.x + at);
    ml_load(x1, c.x + at + c.half);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float cosine = cs[j], sine = c.sign * cs[c.half + j];
        y0[j] = fmaf(x0[j], cosine, -(x1[j] * sine));
        y1[j] = fmaf(x1[j], cosine, x0[j] * sine);
    }
    if (c.add) {
        ml_load(old, c.y + at);
#pragma unroll
        for (int j = 0; j < V; j++)
            y0[j] += old[j];
        ml_load(old, c.y + at + c.half);
#pragma unroll
        for (int j = 0; j < V; j++)
            y1[j] += old[j];
    }
    ml_store(c.y + at, y0);
    ml_store(c.y + at + c.half, y1);
}

template <class T>
static void rope(ml_stream *s, const ml_op_args *a, const ml_tensor *from,
                 const ml_tensor *to, bool back, bool add) {
    const int V = ml_wide<T>::n;
    rope_call<T> c = {};

    c.y = (T *)to->data;
    c.x = (const T *)from->data;
    c.cs = (const float *)a->in[1].data;
    c.width = from->shape[1];
    c.head_dim = a->attr->rope.head_dim;
    c.half = a->attr->rope.dim / 2;
    c.per_head = (c.head_dim + 1) / 2;
    c.n = ml_tensor_count(from) / c.head_dim * c.per_head;
    c.first = a->attr->rope.at;
    c.interleaved = a->attr->rope.interleaved;
    c.add = add;
    c.sign = back != a->attr->rope.inverse ? -1.0f : 1.0f;
    if (c.n == 0)
        return;
    if (!c.interleaved && 2 * c.half == c.head_dim && c.half % V == 0)
        rope_wide_kernel<T, V>
            <<<ml_cuda_blocks(c.n, THREADS * V), THREADS, 0, ml_cuda(s)->stream>>>(c);
    else
        rope_kernel<T><<<ml_cuda_blocks(c.n, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), back ? "rope backward" : "rope");
}

void ml_cuda_rope_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, rope<T>(s, a, &a->in[0], &a->out[0], false, false));
}

/* The inverse of a rotation is its transpose: the same angles, negative. */
void ml_cuda_rope_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype,
                      rope<T>(s, a, &a->dout[0], &a->din[0], true, a->din_add[0]));
}
