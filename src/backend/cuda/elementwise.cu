/* elementwise.cu - ADD and GLU. */
#include "backend/cuda/common.cuh"

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

/* dy itself, for each input that has its own memory. */
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

/* What becomes of a pair: y = act up, and what backward needs: dg = dy up slope, du = dy act keep. */
struct gate {
    float act, slope; /* of the gate */
    float up, keep;   /* the other input as it is used; 0 where it was cut off */
};

__device__ static gate gelu_gate(float g, float u) {
    const float k = 0.7978845608028654f;
    float q = 0.044715f * (g * g), t = ml_tanh(k * fmaf(q, g, g));
    gate r = { (0.5f * g) * (1.0f + t), 0.0f, u, 1.0f };

    r.slope = fmaf((0.5f * g) * ((1.0f - t) * (1.0f + t)), k * fmaf(3.0f, q, 1.0f),
                   0.5f * (1.0f + t));
    return r;
}

__device__ static gate clamped_gate(float g, float u) {
    float low = g > 7.0f ? 7.0f : g, cut = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
    float sig = ml_sigmoid(1.702f * low), act = low * sig;
    gate r = { act, fmaf(1.702f * act, 1.0f - sig, sig), cut + 1.0f,
               u == cut ? 1.0f : 0.0f };

    if (g > 7.0f)
        r.slope = 0.0f;
    return r;
}

__device__ static gate gate_of(float g, float u, ml_act act) {
    float sig = ml_sigmoid(g);
    gate silu = { g * sig, fmaf(g * sig, 1.0f - sig, sig), u, 1.0f };
    gate sigmoid = { sig, sig * (1.0f - sig), u, 1.0f };
    gate relu = { g > 0.0f ? g : 0.0f, g > 0.0f ? 1.0f : 0.0f, u, 1.0f };

    switch (act) {
    case ML_ACT_GELU_TANH: return gelu_gate(g, u);
    case ML_ACT_SIGMOID: return sigmoid;
    case ML_ACT_RELU: return relu;
    case ML_ACT_CLAMPED: return clamped_gate(g, u);
    default: return silu;
    }
}

/* Where gate and up halves lie: rows of `width` numbers, `ld` apart. */
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
        gate r = gate_of(g[k], u[k], c.act);
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
        gate r = gate_of(g[k], u[k], c.act);
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

/* Wide accesses where rows allow them. */
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
