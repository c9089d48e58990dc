/* streams.cu - residual streams: STREAM_MIX sums them with coefficients of each token;
 * HYPER_COEF computes the coefficients of manifold-constrained hyper-connections. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_COEF = ML_STREAMS * (ML_STREAMS + 1) };

/* ---- stream-mix: a block per token ---- */

/* T: of the streams; C: of the coefficients. */
template <class T, class C> struct mix_call {
    T *z, *dx, *dy;
    const T *x, *y, *dz;
    const C *c;
    C *dc;
    int64_t width;
    int n_in, n_out;
    bool streams, extra, add[3];
    float base[MAX_COEF];
};

/* Columns of c for an output stream. */
template <class T, class C>
__host__ __device__ static int columns(const mix_call<T, C> &m) {
    return (m.streams ? m.n_in : 0) + (m.extra ? 1 : 0);
}

/* Column of c for coefficient (r, s); -1: it is a constant. */
template <class T, class C>
__device__ static int column_of(const mix_call<T, C> &m, int r, int s) {
    if (!m.c || (s < m.n_in ? !m.streams : !m.extra))
        return -1;
    return r * columns(m) + (m.streams ? s : 0);
}

/* The coefficients of the block's token, [n_out, n_in + 1]; `used` is false where no input
 * can make one different from 0. */
struct coefs {
    float c[MAX_COEF];
    bool used[MAX_COEF];
};

template <class T, class C>
__device__ static void load_coefs(coefs &k, const mix_call<T, C> &m) {
    const C *row = m.c + (int64_t)blockIdx.x * m.n_out * columns(m);
    int n = m.n_in + 1;

    for (int i = (int)threadIdx.x; i < m.n_out * n; i += THREADS) {
        int at = column_of(m, i / n, i % n);
        k.c[i] = at < 0 ? m.base[i] : m.base[i] + ml_f32(row[at]);
        k.used[i] = at >= 0 || m.base[i] != 0.0f;
    }
    __syncthreads();
}

/* Column i of the token's n streams at x, [n, width]. */
template <class T>
__device__ static void load_streams(float (&v)[ML_STREAMS], const T *x, int n, int64_t i,
                                    int64_t width) {
#pragma unroll
    for (int s = 0; s < ML_STREAMS; s++)
        v[s] = s < n ? ml_f32(x[((int64_t)blockIdx.x * n + s) * width + i]) : 0.0f;
}

template <class T, class C> __global__ void mix_kernel(mix_call<T, C> m) {
    __shared__ coefs k;
    int n = m.n_in + 1;

    load_coefs(k, m);
    for (int64_t i = threadIdx.x; i < m.width; i += THREADS) {
        float x[ML_STREAMS], y = 0.0f;
        load_streams(x, m.x, m.n_in, i, m.width);
        if (m.y)
            y = ml_f32(m.y[blockIdx.x * m.width + i]);
        for (int r = 0; r < m.n_out; r++) {
            float z = 0.0f;
#pragma unroll
            for (int s = 0; s < ML_STREAMS; s++)
                if (s < m.n_in && k.used[r * n + s])
                    z = fmaf(k.c[r * n + s], x[s], z);
            if (m.y && k.used[r * n + m.n_in])
                z = fmaf(k.c[r * n + m.n_in], y, z);
            m.z[((int64_t)blockIdx.x * m.n_out + r) * m.width + i] = ml_as<T>(z);
        }
    }
}

/* The gradient of input stream s in one column: the outputs' gradients dz, times its
 * coefficients. */
template <class T>
__device__ static void stream_back(T *to, const coefs &k, const float (&dz)[ML_STREAMS],
                                   int s, int n, int n_out, bool add) {
    float sum = add ? ml_f32(*to) : 0.0f;

#pragma unroll
    for (int r = 0; r < ML_STREAMS; r++)
        if (r < n_out && k.used[r * n + s])
            sum = fmaf(k.c[r * n + s], dz[r], sum);
    *to = ml_as<T>(sum);
}

/* A warp computes a coefficient's gradient. */
template <class T, class C> __device__ static void coefs_back(const mix_call<T, C> &m) {
    int n = m.n_in + 1, lane = (int)threadIdx.x % 32;
    int64_t token = blockIdx.x;
    C *row = m.dc + token * m.n_out * columns(m);

    for (int i = (int)threadIdx.x / 32; i < m.n_out * n; i += WARPS) {
        int r = i / n, s = i % n, at = column_of(m, r, s);
        const T *dz = m.dz + (token * m.n_out + r) * m.width;
        const T *x =
            s < m.n_in ? m.x + (token * m.n_in + s) * m.width : m.y + token * m.width;
        float sum = 0.0f;
        if (at < 0)
            continue;
        for (int64_t j = lane; j < m.width; j += 32)
            sum = fmaf(ml_f32(dz[j]), ml_f32(x[j]), sum);
        sum = ml_warp_sum(sum);
        if (lane == 0)
            row[at] = ml_as<C>(m.add[2] ? ml_f32(row[at]) + sum : sum);
    }
}

template <class T, class C> __global__ void mix_back_kernel(mix_call<T, C> m) {
    __shared__ coefs k;
    int n = m.n_in + 1;

    load_coefs(k, m);
    for (int64_t i = threadIdx.x; (m.dx || m.dy) && i < m.width; i += THREADS) {
        float dz[ML_STREAMS];
        load_streams(dz, m.dz, m.n_out, i, m.width);
        for (int s = 0; m.dx && s < m.n_in; s++)
            stream_back(m.dx + ((int64_t)blockIdx.x * m.n_in + s) * m.width + i, k, dz, s,
                        n, m.n_out, m.add[0]);
        if (m.dy)
            stream_back(m.dy + blockIdx.x * m.width + i, k, dz, m.n_in, n, m.n_out,
                        m.add[1]);
    }
    if (m.dc)
        coefs_back(m);
}

template <class T, class C>
static void mix_run(ml_stream *s, const ml_op_args *a, bool back) {
    mix_call<T, C> m = {};
    unsigned n = (unsigned)a->in[0].shape[0];

    m.x = (const T *)a->in[0].data;
    m.y = (const T *)a->in[1].data;
    m.c = (const C *)a->in[2].data;
    m.z = (T *)a->out[0].data;
    m.dz = (const T *)a->dout[0].data;
    m.dx = (T *)a->din[0].data;
    m.dy = (T *)a->din[1].data;
    m.dc = (C *)a->din[2].data;
    m.n_in = a->attr->mix.n_in;
    m.n_out = a->attr->mix.n_out;
    m.width = a->in[0].shape[1] / m.n_in;
    m.streams = a->attr->mix.streams;
    m.extra = a->attr->mix.extra;
    for (int i = 0; i < 3; i++)
        m.add[i] = a->din_add[i];
    for (int i = 0; i < m.n_out * (m.n_in + 1); i++)
        m.base[i] = a->attr->mix.base[i];
    if (n && back)
        mix_back_kernel<T, C><<<n, THREADS, 0, ml_cuda(s)->stream>>>(m);
    else if (n)
        mix_kernel<T, C><<<n, THREADS, 0, ml_cuda(s)->stream>>>(m);
    ml_cuda_launched(ml_cuda(s), "stream-mix");
}

static void mix(ml_stream *s, const ml_op_args *a, bool back) {
    if (a->in[0].dtype == ML_F32)
        mix_run<float, float>(s, a, back);
    else if (a->in[2].data && a->in[2].dtype == ML_F32)
        mix_run<bf16, float>(s, a, back);
    else
        mix_run<bf16, bf16>(s, a, back);
}

void ml_cuda_stream_mix_forward(ml_stream *s, const ml_op_args *a) {
    mix(s, a, false);
}

void ml_cuda_stream_mix_backward(ml_stream *s, const ml_op_args *a) {
    mix(s, a, true);
}

/* ---- hyper-coef: a warp per token, in f64; see cpu/hyper.c ---- */

enum { MAX = ML_STREAMS, MAX_IN = MAX * (MAX + 2) };

template <class T> struct hyper_call {
    const T *x;
    T *dx;
    const float *scale, *base, *dc;
    float *c, *kept; /* kept: the gradients of the logits, [n, n_in] */
    int n, n_in, n_iter;
    double eps;
    bool head, add;
};

/* The scale of input i: of pre, post or comb. */
__device__ static int part_of(int n, int i) {
    return i < n ? 0 : i < 2 * n ? 1 : 2;
}

__device__ static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

__device__ static int lane_id(void) {
    return (int)threadIdx.x;
}

template <class T> __device__ static void load_logits(double *l, const hyper_call<T> &h) {
    const T *x = h.x + (int64_t)blockIdx.x * h.n_in;

    for (int i = lane_id(); i < h.n_in; i += 32)
        l[i] = (double)ml_f32(x[i]) * (double)h.scale[part_of(h.n, i)] + (double)h.base[i];
    __syncwarp();
}

/* m [n, n] = the softmax of each row of l; lane i has row i. */
__device__ static void softmax_rows(double *m, const double *l, int n) {
    int i = lane_id();

    if (i < n) {
        double top = l[i * n], sum = 0;
        for (int k = 1; k < n; k++)
            top = l[i * n + k] > top ? l[i * n + k] : top;
        for (int k = 0; k < n; k++)
            sum += m[i * n + k] = exp(l[i * n + k] - top);
        for (int k = 0; k < n; k++)
            m[i * n + k] /= sum;
    }
    __syncwarp();
}

/* Element k of line i of a matrix: a row, or a column. */
__device__ static int element(int n, bool columns, int i, int k) {
    return columns ? k * n + i : i * n + k;
}

/* The sum of a line, plus eps. */
__device__ static double line_sum(const double *m, int n, double eps, bool columns, int i) {
    double sum = 0;

    for (int k = 0; k < n; k++)
        sum += m[element(n, columns, i, k)];
    return sum + eps;
}

/* Divides lines by their sums, by columns, rows, columns, ... (Sinkhorn-Knopp).  step, or
 * NULL: the matrix before each division. */
template <class T>
__device__ static void sinkhorn(double *m, double *step, const hyper_call<T> &h) {
    int i = lane_id(), size = h.n * h.n;

    for (int d = 0; d < 2 * h.n_iter - 1; d++) {
        for (int e = i; step && e < size; e += 32)
            step[d * size + e] = m[e];
        __syncwarp();
        if (i < h.n) {
            double sum = line_sum(m, h.n, h.eps, d % 2 == 0, i);
            for (int k = 0; k < h.n; k++)
                m[element(h.n, d % 2 == 0, i, k)] /= sum;
        }
        __syncwarp();
    }
}

/* m += eps */
__device__ static void add_eps(double *m, const double *p, int size, double eps) {
    for (int e = lane_id(); e < size; e += 32)
        m[e] = p[e] + eps;
    __syncwarp();
}

template <class T> __global__ void hyper_kernel(hyper_call<T> h) {
    __shared__ double l[MAX_IN], m[MAX * MAX];
    int i = lane_id(), n = h.n;
    float *c = h.c + (int64_t)blockIdx.x * (h.head ? n : n * (n + 2));

    load_logits(l, h);
    if (i < n)
        c[i] = (float)(sigmoid(l[i]) + h.eps);
    if (h.head)
        return;
    softmax_rows(m, l + 2 * n, n);
    add_eps(m, m, n * n, h.eps);
    sinkhorn(m, (double *)NULL, h);
    for (int e = i; e < n * n; e += 32)
        c[n + e / n * (n + 1) + e % n] = (float)m[e % n * n + e / n];
    if (i < n)
        c[n + i * (n + 1) + n] = (float)(2.0 * sigmoid(l[n + i]));
}

/* From the gradient of lines divided by their sums to that of the lines:
 * (d - sum of d m) / sum, where m is what was divided, after the division. */
template <class T>
__device__ static void sinkhorn_back(double *d, const double *step,
                                     const hyper_call<T> &h) {
    int i = lane_id(), n = h.n;

    for (int s = 2 * h.n_iter - 2; s >= 0; s--) {
        const double *m = step + s * n * n;
        if (i < n) {
            double sum = line_sum(m, n, h.eps, s % 2 == 0, i), dot = 0;
            for (int k = 0; k < n; k++) {
                int e = element(n, s % 2 == 0, i, k);
                dot += d[e] * (m[e] / sum);
            }
            for (int k = 0; k < n; k++) {
                int e = element(n, s % 2 == 0, i, k);
                d[e] = (d[e] - dot) / sum;
            }
        }
        __syncwarp();
    }
}

/* The gradient of softmax_rows, in place. */
__device__ static void softmax_back(double *d, const double *p, int n) {
    int i = lane_id();

    if (i < n) {
        double dot = 0;
        for (int k = 0; k < n; k++)
            dot += d[i * n + k] * p[i * n + k];
        for (int k = 0; k < n; k++)
            d[i * n + k] = p[i * n + k] * (d[i * n + k] - dot);
    }
    __syncwarp();
}

__device__ static double sigmoid_slope(double l) {
    double p = sigmoid(l);
    return p * (1.0 - p);
}

template <class T> __global__ void hyper_back_kernel(hyper_call<T> h) {
    extern __shared__ double step[]; /* [2 n_iter - 1, n, n] */
    __shared__ double l[MAX_IN], dl[MAX_IN], p[MAX * MAX], m[MAX * MAX];
    int i = lane_id(), n = h.n;
    const float *dc = h.dc + (int64_t)blockIdx.x * (h.head ? n : n * (n + 2));

    load_logits(l, h);
    if (i < n)
        dl[i] = (double)dc[i] * sigmoid_slope(l[i]);
    if (!h.head) {
        if (i < n)
            dl[n + i] = 2.0 * (double)dc[n + i * (n + 1) + n] * sigmoid_slope(l[n + i]);
        for (int e = i; e < n * n; e += 32)
            dl[2 * n + e] = (double)dc[n + e % n * (n + 1) + e / n];
        softmax_rows(p, l + 2 * n, n);
        add_eps(m, p, n * n, h.eps);
        sinkhorn(m, step, h);
        sinkhorn_back(dl + 2 * n, step, h);
        softmax_back(dl + 2 * n, p, n);
    }
    __syncwarp();
    for (int e = i; e < h.n_in; e += 32) {
        int64_t at = (int64_t)blockIdx.x * h.n_in + e;
        float d = (float)(dl[e] * (double)h.scale[part_of(n, e)]);
        h.kept[at] = (float)dl[e];
        if (h.dx)
            h.dx[at] = ml_as<T>(h.add ? ml_f32(h.dx[at]) + d : d);
    }
}

/* The sums over all tokens of the gradients of base and, in the last blocks, of the scales;
 * thread i adds up every THREADS-th number from the i-th on. */
template <class T>
__global__ void hyper_sums(float *dbase, float *dscale, const float *kept, const T *x,
                           int64_t n_token, int n, int n_in) {
    __shared__ double part[THREADS];
    int col = (int)blockIdx.x;
    double sum = 0;

    if (col < n_in ? !dbase : !dscale)
        return;
    for (int64_t t = threadIdx.x; t < n_token; t += THREADS)
        if (col < n_in)
            sum += (double)kept[t * n_in + col];
        else
            for (int i = 0; i < n_in; i++)
                if (part_of(n, i) == col - n_in)
                    sum += (double)kept[t * n_in + i] * (double)ml_f32(x[t * n_in + i]);
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int i = 1; i < THREADS; i++)
        sum += part[i];
    if (col < n_in)
        dbase[col] += (float)sum;
    else
        dscale[col - n_in] += (float)sum;
}

template <class T> static hyper_call<T> hyper_open(const ml_op_args *a) {
    hyper_call<T> h = {};

    h.x = (const T *)a->in[0].data;
    h.scale = (const float *)a->w[0].data;
    h.base = (const float *)a->w[1].data;
    h.n = a->attr->hyper.n_stream;
    h.head = a->attr->hyper.head;
    h.n_in = h.head ? h.n : h.n * (h.n + 2);
    h.n_iter = a->attr->hyper.n_iter;
    h.eps = (double)a->attr->hyper.eps;
    return h;
}

template <class T> static void hyper_forward(ml_stream *s, const ml_op_args *a) {
    hyper_call<T> h = hyper_open<T>(a);
    unsigned n = (unsigned)a->in[0].shape[0];

    h.c = (float *)a->out[0].data;
    if (n)
        hyper_kernel<T><<<n, 32, 0, ml_cuda(s)->stream>>>(h);
    ml_cuda_launched(ml_cuda(s), "hyper-coef");
}

template <class T> static void hyper_backward(ml_stream *s, const ml_op_args *a) {
    hyper_call<T> h = hyper_open<T>(a);
    unsigned n = (unsigned)a->in[0].shape[0];
    size_t steps = h.head ? 0 : (size_t)((2 * h.n_iter - 1) * h.n * h.n) * sizeof(double);
    cudaStream_t stream = ml_cuda(s)->stream;

    h.dc = (const float *)a->dout[0].data;
    h.dx = (T *)a->din[0].data;
    h.kept = (float *)a->scratch;
    h.add = a->din_add[0];
    if (n == 0)
        return;
    ml_cuda_note(ml_cuda(s),
                 cudaFuncSetAttribute(hyper_back_kernel<T>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)steps),
                 "hyper-coef backward");
    hyper_back_kernel<T><<<n, 32, steps, stream>>>(h);
    hyper_sums<T><<<(unsigned)(h.n_in + (h.head ? 1 : 3)), THREADS, 0, stream>>>(
        (float *)a->dw[1].data, (float *)a->dw[0].data, h.kept, h.x, n, h.n, h.n_in);
    ml_cuda_launched(ml_cuda(s), "hyper-coef backward");
}

void ml_cuda_hyper_coef_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, hyper_forward<T>(s, a));
}

void ml_cuda_hyper_coef_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, hyper_backward<T>(s, a));
}
