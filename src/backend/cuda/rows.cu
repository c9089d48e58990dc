/* rows.cu - ops with sums over whole rows: LAYERNORM, ROW_GATE, CUTOFF, MATCH_RMS.
 *
 * A block has a row.  Thread i adds up columns i, i + THREADS, ...; the order depends on the
 * width only. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* The sum over a row of f(column). */
template <class F> __device__ static float row_sum(int64_t width, float *smem, F f) {
    float sum = 0.0f;

    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        sum = f(i, sum);
    return ml_block_sum<WARPS>(sum, smem);
}

template <class T> __device__ static void put(T *to, float x, bool add) {
    *to = ml_as<T>(add ? ml_f32(*to) + x : x);
}

/* Rows of a call; those that are absent are NULL. */
template <class T> struct row_call {
    T *y, *dx[2];
    const T *x[2], *dy;
    const float *w, *b;
    float *mean, *scale; /* LAYERNORM backward: of each row */
    int64_t width;
    float by; /* eps, or the number of standard deviations */
    bool add[2];
};

template <class T> static row_call<T> row_open(const ml_op_args *a, bool back) {
    row_call<T> c = {};

    c.y = back ? NULL : (T *)a->out[0].data;
    c.dy = back ? (const T *)a->dout[0].data : NULL;
    for (int k = 0; k < 2; k++) {
        c.x[k] = (const T *)a->in[k].data;
        c.dx[k] = back ? (T *)a->din[k].data : NULL;
        c.add[k] = a->din_add[k];
    }
    c.w = (const float *)a->w[0].data;
    c.b = (const float *)a->w[1].data;
    c.width = (back ? a->dout : a->out)[0].shape[1];
    return c;
}

template <class T>
static void launch(ml_stream *s, const ml_op_args *a, void (*kernel)(row_call<T>),
                   const row_call<T> &c, const char *name) {
    int64_t n = (c.y ? a->out : a->dout)[0].shape[0];

    if (n)
        kernel<<<(unsigned)n, THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), name);
}

/* ---- layernorm ---- */

struct centre {
    float mean, r; /* r: 1 / standard deviation */
};

template <class T>
__device__ static centre centre_of(const row_call<T> &c, const T *x, float *smem) {
    centre s;

    s.mean =
        row_sum(c.width, smem, [=](int64_t i, float sum) { return sum + ml_f32(x[i]); }) /
        (float)c.width;
    s.r = row_sum(c.width, smem, [=](int64_t i, float sum) {
        float d = ml_f32(x[i]) - s.mean;
        return fmaf(d, d, sum);
    });
    s.r = 1.0f / sqrtf(s.r / (float)c.width + c.by);
    return s;
}

template <class T> __global__ void layernorm_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    const T *x = c.x[0] + blockIdx.x * c.width;
    centre s = centre_of(c, x, smem);

    for (int64_t i = threadIdx.x; i < c.width; i += THREADS)
        c.y[blockIdx.x * c.width + i] =
            ml_as<T>(((ml_f32(x[i]) - s.mean) * s.r) * c.w[i] + c.b[i]);
}

/* With h = (x - mean) r and g = dy w: dx = r (g - h mean(g h) - mean(g)). */
template <class T> __global__ void layernorm_back_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    const T *x = c.x[0] + blockIdx.x * c.width, *dy = c.dy + blockIdx.x * c.width;
    const float *w = c.w;
    centre s = centre_of(c, x, smem);
    float g, gh;

    if (threadIdx.x == 0) {
        c.mean[blockIdx.x] = s.mean;
        c.scale[blockIdx.x] = s.r;
    }
    if (!c.dx[0])
        return;
    g = row_sum(c.width, smem,
                [=](int64_t i, float sum) { return fmaf(ml_f32(dy[i]), w[i], sum); }) /
        (float)c.width;
    gh = row_sum(c.width, smem,
                 [=](int64_t i, float sum) {
                     return fmaf(ml_f32(dy[i]) * w[i], (ml_f32(x[i]) - s.mean) * s.r, sum);
                 }) /
         (float)c.width;
    for (int64_t i = threadIdx.x; i < c.width; i += THREADS) {
        float h = (ml_f32(x[i]) - s.mean) * s.r;
        float d = s.r * (fmaf(h, -gh, ml_f32(dy[i]) * w[i]) - g);
        put(c.dx[0] + blockIdx.x * c.width + i, d, c.add[0]);
    }
}

template <class T> static void layernorm(ml_stream *s, const ml_op_args *a, bool back) {
    row_call<T> c = row_open<T>(a, back);

    c.by = a->attr->norm.eps;
    c.mean = (float *)a->scratch;
    c.scale = c.mean + a->in[0].shape[0];
    launch(s, a, back ? layernorm_back_kernel<T> : layernorm_kernel<T>, c, "layernorm");
}

void ml_cuda_layernorm_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, layernorm<T>(s, a, false));
}

void ml_cuda_layernorm_backward(ml_stream *s, const ml_op_args *a) {
    const float *mean = (const float *)a->scratch;
    ml_row_stats stats = { mean, mean + a->in[0].shape[0] }, none = {};
    float *part = (float *)((char *)a->scratch + ml_cuda_layernorm_stats(a));

    ML_CUDA_TYPED(a->dout[0].dtype, layernorm<T>(s, a, true));
    if (a->dw[0].data)
        ml_cuda_column_sums(ml_cuda(s), (float *)a->dw[0].data, &a->dout[0], &a->in[0],
                            stats, part);
    if (a->dw[1].data)
        ml_cuda_column_sums(ml_cuda(s), (float *)a->dw[1].data, &a->dout[0], NULL, none,
                            part);
}

/* ---- row-gate: x[0] is one number per row, x[1] the row ---- */

template <class T> __global__ void gate_kernel(row_call<T> c) {
    const T *x = c.x[1] + blockIdx.x * c.width;
    float gate = ml_sigmoid(ml_f32(c.x[0][blockIdx.x]));

    for (int64_t i = threadIdx.x; i < c.width; i += THREADS)
        c.y[blockIdx.x * c.width + i] = ml_as<T>(gate * ml_f32(x[i]));
}

template <class T> __global__ void gate_back_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    const T *x = c.x[1] + blockIdx.x * c.width, *dy = c.dy + blockIdx.x * c.width;
    float gate = ml_sigmoid(ml_f32(c.x[0][blockIdx.x]));

    if (c.dx[0]) {
        float dot = row_sum(c.width, smem, [=](int64_t i, float sum) {
            return fmaf(ml_f32(dy[i]), ml_f32(x[i]), sum);
        });
        if (threadIdx.x == 0)
            put(c.dx[0] + blockIdx.x, (gate * (1.0f - gate)) * dot, c.add[0]);
    }
    for (int64_t i = threadIdx.x; c.dx[1] && i < c.width; i += THREADS)
        put(c.dx[1] + blockIdx.x * c.width + i, gate * ml_f32(dy[i]), c.add[1]);
}

void ml_cuda_row_gate_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype,
                  launch(s, a, gate_kernel<T>, row_open<T>(a, false), "row-gate"));
}

void ml_cuda_row_gate_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, launch(s, a, gate_back_kernel<T>, row_open<T>(a, true),
                                           "row-gate backward"));
}

/* ---- cutoff ---- */

/* The mean of a row, its standard deviation and the cutoff. */
struct spread {
    float mean, std, at;
};

template <class T>
__device__ static spread spread_of(const row_call<T> &c, const T *x, float *smem) {
    spread s;

    s.mean =
        row_sum(c.width, smem, [=](int64_t i, float sum) { return sum + ml_f32(x[i]); }) /
        (float)c.width;
    s.std = row_sum(c.width, smem, [=](int64_t i, float sum) {
        float d = ml_f32(x[i]) - s.mean;
        return fmaf(d, d, sum);
    });
    s.std = sqrtf(s.std / (float)c.width);
    s.at = fmaf(s.std, c.by, s.mean);
    return s;
}

template <class T> __global__ void cut_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    const T *x = c.x[0] + blockIdx.x * c.width;
    spread s = spread_of(c, x, smem);

    for (int64_t i = threadIdx.x; i < c.width; i += THREADS)
        c.y[blockIdx.x * c.width + i] = ml_as<T>(ml_max(ml_f32(x[i]) - s.at, 0.0f));
}

/* With g = dy where x > cutoff, else 0: dx = g - mean(g) (1 + z (x - mean) / std).  A row
 * of equal numbers has no slope of its deviation. */
template <class T> __global__ void cut_back_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    const T *x = c.x[0] + blockIdx.x * c.width, *dy = c.dy + blockIdx.x * c.width;
    spread s = spread_of(c, x, smem);
    float mean = row_sum(c.width, smem,
                         [=](int64_t i, float sum) {
                             return ml_f32(x[i]) > s.at ? sum + ml_f32(dy[i]) : sum;
                         }) /
                 (float)c.width;
    float tilt = s.std == 0.0f ? 0.0f : -(mean * c.by) / s.std;

    for (int64_t i = threadIdx.x; i < c.width; i += THREADS) {
        float g = ml_f32(x[i]) > s.at ? ml_f32(dy[i]) : 0.0f;
        put(c.dx[0] + blockIdx.x * c.width + i, fmaf(tilt, ml_f32(x[i]) - s.mean, g - mean),
            c.add[0]);
    }
}

template <class T> static void cut(ml_stream *s, const ml_op_args *a, bool back) {
    row_call<T> c = row_open<T>(a, back);

    c.by = a->attr->cutoff;
    launch(s, a, back ? cut_back_kernel<T> : cut_kernel<T>, c, "cutoff");
}

void ml_cuda_cutoff_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, cut<T>(s, a, false));
}

void ml_cuda_cutoff_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, cut<T>(s, a, true));
}

/* ---- match-rms: x[1] is the row whose magnitude x[0] takes ---- */

/* The mean square of x, its root, at least that of eps, and the root of the other row's. */
struct magnitudes {
    float square, root, target;
};

template <class T>
__device__ static float mean_square(const row_call<T> &c, const T *x, float *smem) {
    return row_sum(c.width, smem,
                   [=](int64_t i, float sum) {
                       return fmaf(ml_f32(x[i]), ml_f32(x[i]), sum);
                   }) /
           (float)c.width;
}

template <class T>
__device__ static magnitudes magnitudes_of(const row_call<T> &c, float *smem) {
    magnitudes m;

    m.square = mean_square(c, c.x[0] + blockIdx.x * c.width, smem);
    m.root = sqrtf(m.square < c.by ? c.by : m.square);
    m.target = sqrtf(mean_square(c, c.x[1] + blockIdx.x * c.width, smem));
    return m;
}

template <class T> __global__ void match_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    magnitudes m = magnitudes_of(c, smem);
    int64_t at = blockIdx.x * c.width;

    for (int64_t i = threadIdx.x; i < c.width; i += THREADS)
        c.y[at + i] = ml_as<T>(m.target / m.root * ml_f32(c.x[0][at + i]));
}

/* With k = target / root and p = mean(dy x): dx = k dy - (k p / mean(x^2)) x, without the
 * second term where root is the bound; dlike = (p / (root target)) like. */
template <class T> __global__ void match_back_kernel(row_call<T> c) {
    __shared__ float smem[WARPS];
    magnitudes m = magnitudes_of(c, smem);
    int64_t at = blockIdx.x * c.width;
    const T *x = c.x[0] + at, *like = c.x[1] + at, *dy = c.dy + at;
    float k = m.target / m.root, down, up;
    float p = row_sum(c.width, smem,
                      [=](int64_t i, float sum) {
                          return fmaf(ml_f32(dy[i]), ml_f32(x[i]), sum);
                      }) /
              (float)c.width;

    down = m.square >= c.by ? -(k * p / m.square) : 0.0f;
    up = m.target == 0.0f ? 0.0f : p / (m.root * m.target);
    for (int64_t i = threadIdx.x; i < c.width; i += THREADS) {
        if (c.dx[0])
            put(c.dx[0] + at + i, fmaf(down, ml_f32(x[i]), k * ml_f32(dy[i])), c.add[0]);
        if (c.dx[1])
            put(c.dx[1] + at + i, up * ml_f32(like[i]), c.add[1]);
    }
}

template <class T> static void match(ml_stream *s, const ml_op_args *a, bool back) {
    row_call<T> c = row_open<T>(a, back);

    c.by = a->attr->match_eps;
    launch(s, a, back ? match_back_kernel<T> : match_kernel<T>, c, "match-rms");
}

void ml_cuda_match_rms_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, match<T>(s, a, false));
}

void ml_cuda_match_rms_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, match<T>(s, a, true));
}
