/* elementwise.cu - ADD, GLU, TANH, SCALE, COL_SCALE, MOE_SCALE, and sums over rows. */
#include "backend/cuda/fuse.cuh"
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

/* Gate and up: rows of `width` numbers, with row stride `ld`; their gradients with `ld_back`. */
template <class T> struct glu_call {
    T *y, *dg, *du; /* y NULL: only the codes are read */
    ml_fp8_out codes;
    const T *g, *u, *dy;
    int64_t n, width, ld, ld_back;
    ml_act act;
    float limit;
    bool add_g, add_u;
};

/* Where a pack of V numbers is: in the output, and in both inputs.  Divided in 32 bits, which is several times as
 * fast. */
struct glu_place {
    int64_t row, col, at;
    bool there;
};

template <int V, class T>
__device__ static glu_place find_pack(const glu_call<T> &c, uint32_t pack) {
    const uint32_t per_row = (uint32_t)(c.width / V);
    glu_place p;

    p.there = pack < (uint32_t)(c.n / V);
    pack = p.there ? pack : 0;
    p.row = pack / per_row;
    p.col = (int64_t)(pack % per_row) * V;
    p.at = p.row * c.ld + p.col;
    return p;
}

/* A thread has GLU_PACKS packs, and loads all of them first. */
enum { GLU_PACKS = 2 };

/* The gate of SILU, known when compiled, has no branches: the numbers of a thread are computed together. */
template <bool SILU, class T>
__device__ static ml_gate glu_gate(const glu_call<T> &c, float g, float u) {
    return ml_gate_of(g, u, SILU ? ML_ACT_SILU : c.act, SILU ? 0.0f : c.limit);
}

template <class T, int V, bool SILU> __global__ void glu_kernel(glu_call<T> c) {
    uint32_t first = blockIdx.x * (GLU_PACKS * THREADS) + threadIdx.x;
    ml_pack<T, V> g[GLU_PACKS], u[GLU_PACKS];
    glu_place p[GLU_PACKS];

    ml_grid_release();
    ml_grid_wait();
#pragma unroll
    for (int j = 0; j < GLU_PACKS; j++) {
        p[j] = find_pack<V>(c, first + j * THREADS);
        g[j] = *(const ml_pack<T, V> *)(c.g + p[j].at);
        u[j] = *(const ml_pack<T, V> *)(c.u + p[j].at);
    }
#pragma unroll
    for (int j = 0; j < GLU_PACKS; j++) {
        float y[V];
        if (!p[j].there)
            return;
#pragma unroll
        for (int k = 0; k < V; k++) {
            ml_gate r = glu_gate<SILU>(c, ml_f32(g[j].v[k]), ml_f32(u[j].v[k]));
            y[k] = r.act * r.up;
        }
        if (c.y)
            ml_store(c.y + p[j].row * c.width + p[j].col, y);
        if constexpr (V == ML_FP8_LANE) /* a half-warp has a group of a row */
            if (c.codes.code)
                ml_fp8_put_rounded(c.codes, p[j].row, p[j].col, y, true);
    }
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

template <class T, int V, bool SILU> __global__ void glu_back_kernel(glu_call<T> c) {
    const glu_place p = find_pack<V>(c, blockIdx.x * THREADS + threadIdx.x);
    const int64_t to = p.row * c.ld_back + p.col;
    float g[V], u[V], dy[V];

    if (!p.there)
        return;
    ml_load(g, c.g + p.at);
    ml_load(u, c.u + p.at);
    ml_load(dy, c.dy + p.row * c.width + p.col);
#pragma unroll
    for (int k = 0; k < V; k++) {
        ml_gate r = glu_gate<SILU>(c, g[k], u[k]);
        g[k] = (dy[k] * r.up) * r.slope;
        u[k] = (dy[k] * r.act) * r.keep;
    }
    if (c.dg)
        put_gradient(c.dg + to, g, c.add_g);
    if (c.du)
        put_gradient(c.du + to, u, c.add_u);
}

template <class T> static glu_call<T> glu_open(const ml_op_args *a, int64_t width) {
    glu_call<T> c = {};
    bool fused = a->attr->glu.fused;

    c.width = width;
    c.ld = fused ? 2 * width : width;
    c.g = (const T *)a->in[0].data;
    c.u = fused ? c.g + width : (const T *)a->in[1].data;
    c.act = a->attr->glu.act;
    c.limit = a->attr->glu.limit;
    return c;
}

template <class T, int V, bool SILU>
static void glu_launch(ml_stream *s, const glu_call<T> &c, bool back) {
    unsigned blocks = ml_cuda_blocks(c.n, THREADS * V * (back ? 1 : GLU_PACKS));

    if (c.n == 0)
        return;
    if (back)
        glu_back_kernel<T, V, SILU><<<blocks, THREADS, 0, ml_cuda(s)->stream>>>(c);
    else
        ml_cuda_launch(ml_cuda(s), "glu", glu_kernel<T, V, SILU>, dim3(blocks), THREADS, 0,
                       c);
    ml_cuda_launched(ml_cuda(s), back ? "glu backward" : "glu");
}

/* 16-byte accesses if the width allows them. */
template <class T> static void glu_run(ml_stream *s, const glu_call<T> &c, bool back) {
    if (c.width % ml_wide<T>::n)
        glu_launch<T, 1, false>(s, c, back);
    else if (c.act == ML_ACT_SILU && c.limit == 0.0f)
        glu_launch<T, ml_wide<T>::n, true>(s, c, back);
    else
        glu_launch<T, ml_wide<T>::n, false>(s, c, back);
}

template <class T>
static void glu_forward(ml_stream *s, const ml_op_args *a, const ml_fp8_out &codes) {
    glu_call<T> c = glu_open<T>(a, a->out[0].shape[1]);

    c.y = (T *)a->out[0].data;
    c.codes = codes;
    c.n = ml_tensor_count(&a->out[0]);
    glu_run<T>(s, c, false);
}

/* Without the gradients. */
template <class T> static glu_call<T> glu_open_back(const ml_op_args *a) {
    glu_call<T> c = glu_open<T>(a, a->dout[0].shape[1]);

    c.dy = (const T *)a->dout[0].data;
    c.n = ml_tensor_count(&a->dout[0]);
    c.ld_back = c.ld;
    return c;
}

template <class T> static void glu_backward(ml_stream *s, const ml_op_args *a) {
    glu_call<T> c = glu_open_back<T>(a);
    bool fused = a->attr->glu.fused;

    c.dg = (T *)a->din[0].data;
    c.du = fused && c.dg ? c.dg + c.width : (T *)a->din[1].data;
    c.add_g = a->din_add[0];
    c.add_u = fused ? a->din_add[0] : a->din_add[1];
    glu_run<T>(s, c, true);
}

void ml_cuda_glu(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes) {
    ML_CUDA_TYPED(a->out[0].dtype, glu_forward<T>(&s->base, a, codes));
}

void ml_cuda_glu_forward(ml_stream *s, const ml_op_args *a) {
    ml_cuda_glu(ml_cuda(s), a, {});
}

void ml_cuda_glu_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, glu_backward<T>(s, a));
}

void ml_cuda_glu_back_joint(ml_cuda_stream *s, const ml_op_args *a, bf16 *to) {
    glu_call<bf16> c = glu_open_back<bf16>(a);

    c.dg = to;
    c.du = to + c.width;
    c.ld_back = 2 * c.width;
    glu_run<bf16>(&s->base, c, true);
}

/* ---- one number from one number: TANH, SCALE, COL_SCALE ---- */

/* What a number of the output depends on: in[i], and w[i % width] where there are weights. */
template <class T> struct map_call {
    T *to;
    const T *from, *also; /* also: the output of TANH, in backward */
    const float *w;       /* NULL: `by` */
    int64_t n, width;
    float by;
    bool add;
};

struct tanh_of {
    template <class T>
    __device__ static float at(const map_call<T> &, float x, float, int64_t) {
        return tanhf(x);
    }
};

struct tanh_slope {
    template <class T>
    __device__ static float at(const map_call<T> &, float dy, float y, int64_t) {
        return dy * ((1.0f - y) * (1.0f + y));
    }
};

/* The product of the number and its column's factor, or the factor of all. */
struct scaled {
    template <class T>
    __device__ static float at(const map_call<T> &c, float x, float, int64_t i) {
        return x * (c.w ? c.w[i % c.width] : c.by);
    }
};

template <class F, class T, int V> __global__ void map_kernel(map_call<T> c) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    float x[V], y[V] = {};

    if (i >= c.n)
        return;
    ml_load(x, c.from + i);
    if (c.also)
        ml_load(y, c.also + i);
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] = F::at(c, x[k], y[k], i + k);
    put_gradient(c.to + i, x, c.add);
}

template <class F, class T>
static void map_run(ml_stream *s, const map_call<T> &c, const char *name) {
    const int V = ml_wide<T>::n;

    if (c.n == 0)
        return;
    if (c.n % V == 0)
        map_kernel<F, T, V>
            <<<ml_cuda_blocks(c.n, THREADS * V), THREADS, 0, ml_cuda(s)->stream>>>(c);
    else
        map_kernel<F, T, 1>
            <<<ml_cuda_blocks(c.n, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), name);
}

template <class T>
static map_call<T> map_open(const ml_tensor *to, const ml_tensor *from, bool add) {
    map_call<T> c = {};

    c.to = (T *)to->data;
    c.from = (const T *)from->data;
    c.n = ml_tensor_count(to);
    c.add = add;
    return c;
}

void ml_cuda_tanh_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype,
                  map_run<tanh_of>(s, map_open<T>(&a->out[0], &a->in[0], false), "tanh"));
}

template <class T> static void tanh_backward(ml_stream *s, const ml_op_args *a) {
    map_call<T> c = map_open<T>(&a->din[0], &a->dout[0], a->din_add[0]);

    c.also = (const T *)a->out[0].data;
    map_run<tanh_slope>(s, c, "tanh backward");
}

void ml_cuda_tanh_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype, tanh_backward<T>(s, a));
}

/* SCALE has one weight, or none. */
template <class T>
static void scale(ml_stream *s, const ml_op_args *a, const ml_tensor *to,
                  const ml_tensor *from, bool add) {
    map_call<T> c = map_open<T>(to, from, add);

    c.w = (const float *)a->w[0].data;
    c.width = a->w[0].n_dim ? a->w[0].shape[0] : 1;
    c.by = a->attr->scale;
    map_run<scaled>(s, c, "scale");
}

void ml_cuda_scale_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, scale<T>(s, a, &a->out[0], &a->in[0], false));
}

void ml_cuda_scale_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->dout[0].dtype,
                      scale<T>(s, a, &a->din[0], &a->dout[0], a->din_add[0]));
}

void ml_cuda_col_scale_forward(ml_stream *s, const ml_op_args *a) {
    ml_cuda_scale_forward(s, a);
}

void ml_cuda_col_scale_backward(ml_stream *s, const ml_op_args *a) {
    ml_row_stats none = {};

    ml_cuda_scale_backward(s, a);
    if (a->dw[0].data)
        ml_cuda_column_sums(ml_cuda(s), (float *)a->dw[0].data, &a->dout[0], &a->in[0],
                            none, (float *)a->scratch);
}

/* ---- moe-scale: few numbers per token ---- */

__global__ static void expert_scale_kernel(float *to, const float *from,
                                           const int32_t *expert, const float *w, int64_t n,
                                           bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float x;

    if (i >= n)
        return;
    x = from[i] * w[expert[i]];
    to[i] = add ? to[i] + x : x;
}

/* A block for each expert; thread i adds up every THREADS-th number from the i-th on. */
__global__ static void expert_scale_sums(float *dw, const float *dy, const float *weight,
                                         const int32_t *expert, int64_t n) {
    __shared__ float smem[THREADS / 32];
    float sum = 0.0f;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        if (expert[i] == (int32_t)blockIdx.x)
            sum = fmaf(dy[i], weight[i], sum);
    sum = ml_block_sum<THREADS / 32>(sum, smem);
    if (threadIdx.x == 0)
        dw[blockIdx.x] += sum;
}

static void expert_scale(ml_stream *s, const ml_op_args *a, const ml_tensor *to,
                         const ml_tensor *from, bool add) {
    int64_t n = ml_tensor_count(to);

    if (n)
        expert_scale_kernel<<<ml_cuda_blocks(n, THREADS), THREADS, 0, ml_cuda(s)->stream>>>(
            (float *)to->data, (const float *)from->data, (const int32_t *)a->in[1].data,
            (const float *)a->w[0].data, n, add);
    ml_cuda_launched(ml_cuda(s), "moe-scale");
}

void ml_cuda_moe_scale_forward(ml_stream *s, const ml_op_args *a) {
    expert_scale(s, a, &a->out[0], &a->in[0], false);
}

void ml_cuda_moe_scale_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        expert_scale(s, a, &a->din[0], &a->dout[0], a->din_add[0]);
    if (a->dw[0].data)
        expert_scale_sums<<<(unsigned)a->w[0].shape[0], THREADS, 0, ml_cuda(s)->stream>>>(
            (float *)a->dw[0].data, (const float *)a->dout[0].data,
            (const float *)a->in[0].data, (const int32_t *)a->in[1].data,
            ml_tensor_count(&a->dout[0]));
    ml_cuda_launched(ml_cuda(s), "moe-scale backward");
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

/* Sums of ML_COLUMN_ROWS rows each; rows in order. */
template <class T>
__global__ void column_kernel(float *part, const T *dy, const T *x, ml_row_stats stats,
                              int64_t rows, int64_t n) {
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * ML_COLUMN_ROWS;
    int64_t end = first + ML_COLUMN_ROWS < rows ? first + ML_COLUMN_ROWS : rows;
    float sum = 0.0f;

    if (col >= n)
        return;
    for (int64_t t = first; t < end; t++) {
        float h = x ? ml_f32(x[t * n + col]) : 1.0f;
        if (stats.mean)
            h = (h - stats.mean[t]) * stats.scale[t];
        sum = fmaf(ml_f32(dy[t * n + col]), h, sum);
    }
    part[(int64_t)blockIdx.y * n + col] = sum;
}

void ml_cuda_column_sums(ml_cuda_stream *s, float *y, const ml_tensor *dy,
                         const ml_tensor *x, ml_row_stats stats, float *part) {
    int64_t rows = dy->shape[0], n = dy->shape[1];
    unsigned parts = ml_cuda_blocks(rows, ML_COLUMN_ROWS);

    if (rows == 0)
        return;
    ML_CUDA_TYPED(
        dy->dtype, column_kernel<T>
        <<<dim3(ml_cuda_blocks(n, THREADS), parts), THREADS, 0, s->stream>>>(
            part, (const T *)dy->data, x ? (const T *)x->data : NULL, stats, rows, n));
    ml_cuda_launched(s, "sums of columns");
    ml_cuda_add_parts(s, y, part, (int)parts, n);
}
