/* decay.cu - DECAY: the decay (keep) and the input rate (take) of recurrent heads.
 *
 * One number per token and head, in f64 and rounded once, as on the CPU. */
#include "backend/cuda/common.cuh"

enum { THREADS = 128 };

template <class T> struct decay_call {
    const T *a, *b; /* b NULL: the input rate is the step */
    const float *log_speed, *bias;
    float *y;
    const float *dy;
    T *da, *db;
    double *part; /* [2, chunks, n_head] sums of the weights' gradients */
    int64_t n, n_chunk;
    int n_head;
    float min_step;
    bool add_a, add_b;
};

/* z = a + bias, step = max(softplus(z), min_step), keep = exp(-speed step). */
struct decay_rate {
    float z;
    bool least;
    double speed, step, keep;
};

__device__ static double sigmoid64(double x) {
    return 1.0 / (1.0 + exp(-x));
}

template <class T>
__device__ static decay_rate rate_at(const decay_call<T> &c, int64_t t, int h) {
    decay_rate r;

    r.z = ml_f32(c.a[t * c.n_head + h]) + c.bias[h];
    r.speed = exp((double)c.log_speed[h]);
    r.step = fmax((double)r.z, 0.0) + log1p(exp(-fabs((double)r.z)));
    if (isnan(r.z)) /* fmax drops it */
        r.step = (double)r.z;
    r.least = r.step < (double)c.min_step;
    if (r.least)
        r.step = (double)c.min_step;
    r.keep = exp(-(r.speed * r.step));
    return r;
}

template <class T> __global__ void decay_kernel(decay_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / c.n_head;
    int h = (int)(i % c.n_head);
    decay_rate r;

    if (t >= c.n)
        return;
    r = rate_at(c, t, h);
    c.y[t * 2 * c.n_head + h] = (float)r.keep;
    c.y[(t * 2 + 1) * c.n_head + h] =
        (float)(c.b ? sigmoid64((double)ml_f32(c.b[i])) : r.step);
}

template <class T> __device__ static void put(T *to, float d, bool add) {
    *to = ml_as<T>(add ? ml_f32(*to) + d : d);
}

/* Writes the gradients of row t; adds those of the weights to sum. */
template <class T>
__device__ static void row_back(const decay_call<T> &c, int64_t t, int h,
                                double (&sum)[2]) {
    const float *d = c.dy + t * 2 * c.n_head + h;
    decay_rate r = rate_at(c, t, h);
    double dpower = (double)d[0] * r.keep; /* gradient of -speed step */
    double dstep = -r.speed * dpower + (c.b ? 0.0 : (double)d[c.n_head]);
    double dz = r.least ? 0.0 : dstep * sigmoid64((double)r.z);

    sum[0] += -(r.speed * r.step) * dpower;
    sum[1] += dz;
    if (c.da)
        put(c.da + t * c.n_head + h, (float)dz, c.add_a);
    if (c.db) {
        float gate = (float)sigmoid64((double)ml_f32(c.b[t * c.n_head + h]));
        put(c.db + t * c.n_head + h, d[c.n_head] * (gate * (1.0f - gate)), c.add_b);
    }
}

/* A thread has one head of a chunk of rows. */
template <class T> __global__ void decay_back_kernel(decay_call<T> c) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t chunk = i / c.n_head, from = chunk * ML_DECAY_ROWS;
    int64_t to = from + ML_DECAY_ROWS < c.n ? from + ML_DECAY_ROWS : c.n;
    int h = (int)(i % c.n_head);
    double sum[2] = { 0.0, 0.0 };

    if (from >= c.n)
        return;
    for (int64_t t = from; t < to; t++)
        row_back(c, t, h, sum);
    for (int k = 0; k < 2; k++)
        c.part[(k * c.n_chunk + chunk) * c.n_head + h] = sum[k];
}

/* The weights' gradients cancel over tokens: their sums are rounded once. */
__global__ static void decay_weight_kernel(float *dw, const double *part, int64_t n_chunk,
                                           int n_head) {
    int h = (int)(blockIdx.x * THREADS + threadIdx.x);
    double sum = 0.0;

    if (h >= n_head)
        return;
    for (int64_t k = 0; k < n_chunk; k++)
        sum += part[k * n_head + h];
    dw[h] = (float)((double)dw[h] + sum);
}

template <class T> static decay_call<T> decay_open(const ml_op_args *a) {
    decay_call<T> c = {};

    c.a = (const T *)a->in[0].data;
    c.b = (const T *)a->in[1].data;
    c.log_speed = (const float *)a->w[0].data;
    c.bias = (const float *)a->w[1].data;
    c.n = a->in[0].shape[0];
    c.n_head = (int)a->in[0].shape[1];
    c.min_step = a->attr->min_step;
    return c;
}

template <class T> static void decay_forward(ml_cuda_stream *s, const ml_op_args *a) {
    decay_call<T> c = decay_open<T>(a);

    c.y = (float *)a->out[0].data;
    if (!c.n)
        return;
    decay_kernel<T><<<ml_cuda_blocks(c.n * c.n_head, THREADS), THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "decay");
}

template <class T> static void decay_backward(ml_cuda_stream *s, const ml_op_args *a) {
    decay_call<T> c = decay_open<T>(a);

    c.n_chunk = ml_cuda_decay_chunks(c.n);
    c.dy = (const float *)a->dout[0].data;
    c.da = (T *)a->din[0].data;
    c.db = c.b ? (T *)a->din[1].data : NULL;
    c.add_a = a->din_add[0];
    c.add_b = a->din_add[1];
    c.part = (double *)a->scratch;
    if (!c.n)
        return;
    decay_back_kernel<T>
        <<<ml_cuda_blocks(c.n_chunk * c.n_head, THREADS), THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "decay backward");
    for (int k = 0; k < 2; k++)
        if (a->dw[k].data)
            decay_weight_kernel<<<ml_cuda_blocks(c.n_head, THREADS), THREADS, 0,
                                  s->stream>>>((float *)a->dw[k].data,
                                               c.part + k * c.n_chunk * c.n_head, c.n_chunk,
                                               c.n_head);
    ml_cuda_launched(s, "decay backward");
}

void ml_cuda_decay_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, decay_forward<T>(ml_cuda(s), a));
}

void ml_cuda_decay_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, decay_backward<T>(ml_cuda(s), a));
}
