/* elementwise.cu - ADD, GLU, and the reduction of partial sums. */
#include "backend/cuda/glu.cuh"

enum { THREADS = 256 };

/* ---- add ---- */

template <class T> __global__ void add_kernel(T *y, const T *a, const T *b, int64_t n) {
    const int V = ml_wide<T>::n;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    float x[V], z[V];

    if (i + V <= n) {
        ml_load(x, a + i);
        ml_load(z, b + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            x[k] += z[k];
        ml_store(y + i, x);
    } else {
        for (; i < n; i++)
            y[i] = ml_as<T>(ml_f32(a[i]) + ml_f32(b[i]));
    }
}

template <class T>
static void add(ml_stream *s, void *y, const void *a, const void *b, int64_t n) {
    if (n == 0)
        return;
    add_kernel<T>
        <<<ml_cuda_blocks(n, THREADS * ml_wide<T>::n), THREADS, 0, ml_cuda(s)->stream>>>(
            (T *)y, (const T *)a, (const T *)b, n);
    ml_cuda_launched(ml_cuda(s), "add");
}

void ml_cuda_add_forward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *y = &a->out[0];
    ML_CUDA_TYPED(y->dtype,
                  add<T>(s, y->data, a->in[0].data, a->in[1].data, ml_tensor_count(y)));
}

/* The gradient of input k is dy: adds or copies it, unless they share memory. */
static void pass_gradient(ml_stream *s, const ml_op_args *a, int k) {
    const ml_tensor *d = &a->din[k], *dy = &a->dout[0];
    int64_t n = d->data ? ml_tensor_count(d) : 0;

    if (n == 0)
        return;
    if (a->din_add[k])
        ML_CUDA_TYPED(d->dtype, add<T>(s, d->data, d->data, dy->data, n));
    else if (d->data != dy->data)
        ml_cuda_note(ml_cuda(s),
                     cudaMemcpyAsync(d->data, dy->data, ml_tensor_bytes(d),
                                     cudaMemcpyDeviceToDevice, ml_cuda(s)->stream),
                     "add backward");
}

void ml_cuda_add_backward(ml_stream *s, const ml_op_args *a) {
    pass_gradient(s, a, 0);
    pass_gradient(s, a, 1);
}

/* ---- glu ---- */

/* Gate and up: rows of `width` numbers, with row stride `ld`. */
template <class T> struct glu_call {
    T *y, *dg, *du;
    const T *g, *u, *dy;
    int64_t n, width, ld;
    ml_act act;
    bool add_g, add_u;
};

template <class T, int V> __global__ void glu_kernel(glu_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    int64_t at = i / c.width * c.ld + i % c.width;
    float g[V], u[V];

    if (i >= c.n)
        return;
    ml_load(g, c.g + at);
    ml_load(u, c.u + at);
#pragma unroll
    for (int k = 0; k < V; k++) {
        ml_gate r = ml_gate_of(g[k], u[k], c.act);
        g[k] = r.act * r.up;
    }
    ml_store(c.y + i, g);
}

template <class T, int V>
__device__ static void put_gradient(T *to, float (&d)[V], bool add) {
    float old[V];
    if (add) {
        ml_load(old, to);
#pragma unroll
        for (int k = 0; k < V; k++)
            d[k] += old[k];
    }
    ml_store(to, d);
}

template <class T, int V> __global__ void glu_back_kernel(glu_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    int64_t at = i / c.width * c.ld + i % c.width;
    float g[V], u[V], dy[V];

    if (i >= c.n)
        return;
    ml_load(g, c.g + at);
    ml_load(u, c.u + at);
    ml_load(dy, c.dy + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        ml_gate r = ml_gate_of(g[k], u[k], c.act);
        g[k] = (dy[k] * r.up) * r.slope;
        u[k] = (dy[k] * r.act) * r.keep;
    }
    if (c.dg)
        put_gradient(c.dg + at, g, c.add_g);
    if (c.du)
        put_gradient(c.du + at, u, c.add_u);
}

template <class T> static glu_call<T> glu_open(const ml_op_args *a, int64_t width) {
    glu_call<T> c = {};
    bool fused = a->attr->glu.fused;

    c.width = width;
    c.ld = fused ? 2 * width : width;
    c.g = (const T *)a->in[0].data;
    c.u = fused ? c.g + width : (const T *)a->in[1].data;
    c.act = a->attr->glu.act;
    return c;
}

template <class T, int V>
static void glu_launch(ml_stream *s, const glu_call<T> &c, bool back) {
    unsigned blocks = ml_cuda_blocks(c.n, THREADS * V);

    if (c.n == 0)
        return;
    if (back)
        glu_back_kernel<T, V><<<blocks, THREADS, 0, ml_cuda(s)->stream>>>(c);
    else
        glu_kernel<T, V><<<blocks, THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), back ? "glu backward" : "glu");
}

/* 16-byte accesses if the width allows them. */
template <class T> static void glu_run(ml_stream *s, const glu_call<T> &c, bool back) {
    if (c.width % ml_wide<T>::n == 0)
        glu_launch<T, ml_wide<T>::n>(s, c, back);
    else
        glu_launch<T, 1>(s, c, back);
}

template <class T> static void glu_forward(ml_stream *s, const ml_op_args *a) {
    glu_call<T> c = glu_open<T>(a, a->out[0].shape[1]);

    c.y = (T *)a->out[0].data;
    c.n = ml_tensor_count(&a->out[0]);
    glu_run<T>(s, c, false);
}

template <class T> static void glu_backward(ml_stream *s, const ml_op_args *a) {
    glu_call<T> c = glu_open<T>(a, a->dout[0].shape[1]);
    bool fused = a->attr->glu.fused;

    c.dy = (const T *)a->dout[0].data;
    c.n = ml_tensor_count(&a->dout[0]);
    c.dg = (T *)a->din[0].data;
    c.du = fused && c.dg ? c.dg + c.width : (T *)a->din[1].data;
    c.add_g = a->din_add[0];
    c.add_u = fused ? a->din_add[0] : a->din_add[1];
    glu_run<T>(s, c, true);
}

void ml_cuda_glu_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, glu_forward<T>(s, a));
}

void ml_cuda_glu_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, glu_backward<T>(s, a));
}

/* ---- partial sums ---- */

__global__ static void parts_kernel(float *y, const float *part, int n_part, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;

    if (i >= n)
        return;
    for (int p = 0; p < n_part; p++)
        sum += part[p * n + i];
    y[i] += sum;
}

void ml_cuda_add_parts(ml_cuda_stream *s, float *y, const float *part, int n_part,
                       int64_t n) {
    parts_kernel<<<ml_cuda_blocks(n, THREADS), THREADS, 0, s->stream>>>(y, part, n_part, n);
    ml_cuda_launched(s, "a sum of parts");
}
