/* norm.cu - RMSNORM.
 *
 * A team of threads (half a warp, a warp, or a block for wide groups) has a group; each
 * thread keeps its packs of numbers in registers.  Team and packs depend on the width
 * only. */
#include "backend/cuda/fp8/fp8_out.cuh"
#include "backend/cuda/fuse.cuh"

enum {
    THREADS = 256,
    DW_COLUMNS = 32, /* that a block sums; a warp takes every DW_WAYS-th chunk */
    DW_WAYS = THREADS / DW_COLUMNS
};

template <class T> struct norm_call {
    T *y, *dx; /* y NULL: only the codes are read */
    ml_fp8_out codes;
    const T *x, *dy;
    const T *plus; /* forward: the norm is of x + plus, which is written to sum; or NULL */
    T *sum;
    const float *w; /* NULL: 1 */
    float *part;    /* [chunks, width] sums of dw, or NULL */
    int64_t n_group, per_chunk;
    int64_t first, step; /* group i is the (first + i step)th of the batch */
    int width, n_weight; /* group g of the batch has weight row g mod n_weight */
    float eps;
    bool plus_one, add;
};

/* How threads share a group: TEAM threads with PACKS packs of V numbers each. */
template <int TEAM_, int PACKS_, int V_> struct shares {
    static const int TEAM = TEAM_, PACKS = PACKS_, V = V_;
    static const int WARPS = TEAM_ > 32 ? TEAM_ / 32 : 1;
    static const int TEAMS = THREADS / TEAM_;
};

template <class S> __device__ static float team_sum(float x, float *smem) {
    if constexpr (S::TEAM > 32) {
        return ml_block_sum<S::WARPS>(x, smem);
    } else {
#pragma unroll
        for (int w = S::TEAM / 2; w; w >>= 1)
            x += __shfl_xor_sync(0xffffffffu, x, w);
        return x;
    }
}

/* The first column of a thread's pack j. */
template <class S> __device__ static int pack_at(int lane, int j) {
    return S::V * (lane + S::TEAM * j);
}

template <class S, class T>
__device__ static void load_pack(float (&v)[S::V], const T *from, int i, int width) {
#pragma unroll
    for (int k = 0; k < S::V; k++)
        v[k] = 0.0f;
    if (i < width)
        ml_load(v, from + i);
}

template <class S>
__device__ static float dot(const float (&a)[S::V], const float (&b)[S::V], float sum) {
#pragma unroll
    for (int k = 0; k < S::V; k++)
        sum = fmaf(a[k], b[k], sum);
    return sum;
}

template <class S, class T>
__device__ static void load_weight(float (&w)[S::V], const norm_call<T> &c,
                                   const float *from, int i) {
    load_pack<S>(w, from, i, c.w ? c.width : 0);
#pragma unroll
    for (int k = 0; k < S::V; k++)
        w[k] += c.plus_one || !c.w ? 1.0f : 0.0f;
}

/* x + plus, rounded as ADD does. */
template <class S, class T>
__device__ static void add_pack(float (&x)[S::V], const norm_call<T> &c, int64_t group,
                                int i, bool there) {
    float y[S::V];

    load_pack<S>(y, c.plus + group, i, c.width);
#pragma unroll
    for (int k = 0; k < S::V; k++)
        x[k] = ml_f32(ml_as<T>(x[k] + y[k]));
    if (there && c.sum && i < c.width)
        ml_store(c.sum + group + i, x);
}

/* Loads x of a group; returns 1 / its root mean square.  there false: writes nothing. */
template <class S, class T>
__device__ static float load_group(float (&x)[S::PACKS][S::V], const norm_call<T> &c,
                                   int64_t g, bool there, int lane, float *smem) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        load_pack<S>(x[j], c.x + g * c.width, pack_at<S>(lane, j), c.width);
        if (c.plus)
            add_pack<S>(x[j], c, g * c.width, pack_at<S>(lane, j), there);
        sum = dot<S>(x[j], x[j], sum);
    }
    return 1.0f / sqrtf(team_sum<S>(sum, smem) / (float)c.width + c.eps);
}

/* A half-warp has whole groups of codes where V is 8: they are wanted of widths that are multiples of 128 only. */
template <class S, class T>
__device__ static void put_codes(const norm_call<T> &c, int64_t g, int i,
                                 const float (&y)[S::V], bool there) {
    if constexpr (S::V == ML_FP8_LANE)
        if (c.codes.code && i < c.width)
            ml_fp8_put_rounded(c.codes, g, i, y, there);
}

template <class S, class T> __global__ void norm_kernel(norm_call<T> c) {
    __shared__ float smem[THREADS / 32];
    int lane = (int)threadIdx.x % S::TEAM;
    int64_t g = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
    bool there = g < c.n_group; /* no early return: a warp's teams shuffle together */
    float x[S::PACKS][S::V], r;

    ml_grid_release();
    ml_grid_wait();
    if (!there)
        g = 0;
    r = load_group<S>(x, c, g, there, lane, smem);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        int i = pack_at<S>(lane, j);
        float w[S::V];
        load_weight<S>(w, c, c.w + g % c.n_weight * c.width, i);
#pragma unroll
        for (int k = 0; k < S::V; k++)
            x[j][k] = (x[j][k] * r) * w[k];
        if (there && i < c.width && c.y)
            ml_store(c.y + g * c.width + i, x[j]);
        put_codes<S>(c, g, i, x[j], there);
    }
}

/* Backward of one group: writes dx, adds to the thread's sums of dw. */
template <class S, class T>
__device__ static void back_group(const norm_call<T> &c, int64_t g, bool there, int lane,
                                  float (&dw)[S::PACKS][S::V], float *smem) {
    float h[S::PACKS][S::V], dy[S::PACKS][S::V], m = 0.0f, r;

#pragma unroll
    for (int j = 0; j < S::PACKS; j++)
        load_pack<S>(dy[j], c.dy + g * c.width, pack_at<S>(lane, j), there ? c.width : 0);
    r = load_group<S>(h, c, g, there, lane, smem);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        float w[S::V];
        load_weight<S>(w, c, c.w, pack_at<S>(lane, j));
#pragma unroll
        for (int k = 0; k < S::V; k++) {
            h[j][k] *= r;
            dw[j][k] = fmaf(dy[j][k], h[j][k], dw[j][k]);
            dy[j][k] *= w[k];
            m = fmaf(dy[j][k], h[j][k], m);
        }
    }
    m = -(team_sum<S>(m, smem) / (float)c.width);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        int i = pack_at<S>(lane, j);
        float old[S::V], d[S::V];
        if (!there || !c.dx || i >= c.width)
            continue;
        load_pack<S>(old, c.dx + g * c.width, i, c.add ? c.width : 0);
#pragma unroll
        for (int k = 0; k < S::V; k++)
            d[k] = fmaf(r, fmaf(h[j][k], m, dy[j][k]), old[k]);
        ml_store(c.dx + g * c.width + i, d);
    }
}

/* A block loops over the groups of a chunk; its teams' sums of dw are added in order. */
template <class S, class T>
__global__ void __launch_bounds__(THREADS, S::PACKS == 1          ? 4
                                           : S::PACKS * S::V > 32 ? 1
                                                                  : 2)
    norm_back_kernel(norm_call<T> c) {
    extern __shared__ float sums[]; /* [TEAMS][width] */
    __shared__ float smem[THREADS / 32];
    int lane = (int)threadIdx.x % S::TEAM, team = (int)threadIdx.x / S::TEAM;
    int64_t first = (int64_t)blockIdx.x * c.per_chunk;
    int64_t end = first + c.per_chunk < c.n_group ? first + c.per_chunk : c.n_group;
    float dw[S::PACKS][S::V] = {}, *to;

    for (int64_t base = first; base < end; base += S::TEAMS) {
        bool there = base + team < end;
        back_group<S>(c, c.first + (there ? base + team : first) * c.step, there, lane, dw,
                      smem);
    }
    if (!c.part)
        return;
    to = S::TEAMS == 1 ? c.part + (int64_t)blockIdx.x * c.width : sums;
#pragma unroll
    for (int j = 0; j < S::PACKS; j++)
#pragma unroll
        for (int k = 0; k < S::V; k++)
            if (pack_at<S>(lane, j) + k < c.width)
                to[team * c.width + pack_at<S>(lane, j) + k] = dw[j][k];
    if (S::TEAMS == 1)
        return;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < c.width; i += THREADS) {
        float sum = 0.0f;
        for (int t = 0; t < S::TEAMS; t++)
            sum += sums[t * c.width + i];
        c.part[(int64_t)blockIdx.x * c.width + i] = sum;
    }
}

/* dw += the chunks' partial sums. */
__global__ static void norm_dw_kernel(float *dw, const float *part, int chunks, int width) {
    __shared__ float smem[DW_WAYS][DW_COLUMNS];
    int col = (int)threadIdx.x % DW_COLUMNS, way = (int)threadIdx.x / DW_COLUMNS;
    int i = (int)blockIdx.x * DW_COLUMNS + col;
    float sum = 0.0f;

    for (int k = way; i < width && k < chunks; k += DW_WAYS)
        sum += part[(int64_t)k * width + i];
    smem[way][col] = sum;
    __syncthreads();
    if (way || i >= width)
        return;
    for (int k = 1; k < DW_WAYS; k++)
        sum += smem[k][col];
    dw[i] += sum;
}

/* A function of group count and width only, so that gradients are deterministic. */
static int64_t groups_per_chunk(int64_t n_group, int width) {
    int64_t per = (n_group + ml_cuda_norm_chunks(width) - 1) / ml_cuda_norm_chunks(width);
    return per < 16 ? 16 : per;
}

template <class S, class T>
static void norm_launch(ml_stream *s, const norm_call<T> &c, bool back) {
    cudaStream_t stream = ml_cuda(s)->stream;
    size_t sums = S::TEAMS == 1 ? 0 : (size_t)S::TEAMS * (size_t)c.width * sizeof(float);

    if (back)
        norm_back_kernel<S, T>
            <<<ml_cuda_blocks(c.n_group, c.per_chunk), THREADS, sums, stream>>>(c);
    else
        ml_cuda_launch(ml_cuda(s), "rmsnorm", norm_kernel<S, T>,
                       dim3(ml_cuda_blocks(c.n_group, S::TEAMS)), THREADS, 0, c);
    ml_cuda_launched(ml_cuda(s), back ? "rmsnorm backward" : "rmsnorm");
}

template <class T> static void norm_run(ml_stream *s, const norm_call<T> &c, bool back) {
    if (c.n_group == 0)
        return;
    if (c.width % 8 && c.width <= 256)
        norm_launch<shares<32, 8, 1>>(s, c, back);
    else if (c.width % 8)
        norm_launch<shares<256, 32, 1>>(s, c, back);
    else if (c.width <= ML_NORM_NARROW)
        norm_launch<shares<16, 1, 8>>(s, c, back);
    else if (c.width <= 1024)
        norm_launch<shares<32, 4, 8>>(s, c, back);
    else if (c.width <= 8192)
        norm_launch<shares<256, 4, 8>>(s, c, back);
    else
        norm_launch<shares<256, ML_NORM_WIDEST / 2048, 8>>(s, c, back);
}

template <class T> static norm_call<T> norm_open(const ml_op_args *a) {
    norm_call<T> c = {};

    c.x = (const T *)a->in[0].data;
    c.w = (const float *)a->w[0].data;
    c.width = a->attr->norm.width;
    c.n_weight = c.w ? (int)(a->w[0].shape[0] / c.width) : 1;
    c.step = 1;
    c.n_group = ml_tensor_count(&a->in[0]) / c.width;
    c.eps = a->attr->norm.eps;
    c.plus_one = a->attr->norm.plus_one;
    return c;
}

template <class T>
static void norm_forward(ml_stream *s, const ml_op_args *a, const ml_fp8_out &codes) {
    norm_call<T> c = norm_open<T>(a);

    c.y = (T *)a->out[0].data;
    c.codes = codes;
    norm_run<T>(s, c, false);
}

/* Loops over the weights; a launch has the groups that share one. */
template <class T> static void norm_backward(ml_stream *s, const ml_op_args *a) {
    norm_call<T> c = norm_open<T>(a);

    c.dy = (const T *)a->dout[0].data;
    c.dx = (T *)a->din[0].data;
    c.add = a->din_add[0];
    c.part = a->dw[0].data ? (float *)a->scratch : NULL;
    c.n_group /= c.n_weight;
    c.per_chunk = groups_per_chunk(c.n_group, c.width);
    c.step = c.n_weight;
    for (; c.first < c.n_weight && c.n_group; c.first++, c.w += c.w ? c.width : 0) {
        norm_run<T>(s, c, true);
        if (c.part)
            norm_dw_kernel<<<ml_cuda_blocks(c.width, DW_COLUMNS), THREADS, 0,
                             ml_cuda(s)->stream>>>(
                (float *)a->dw[0].data + c.first * c.width, c.part,
                (int)ml_cuda_blocks(c.n_group, c.per_chunk), c.width);
        ml_cuda_launched(ml_cuda(s), "rmsnorm weight gradient");
    }
}

template <class T>
static void sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm,
                     const ml_fp8_out &codes) {
    norm_call<T> c = norm_open<T>(norm);

    c.x = (const T *)add->in[0].data;
    c.plus = (const T *)add->in[1].data;
    c.y = (T *)norm->out[0].data;
    c.sum = add->out[0].data == norm->out[0].data ? NULL : (T *)add->out[0].data;
    c.codes = codes;
    norm_run<T>(&s->base, c, false);
}

void ml_cuda_sum_norm(ml_cuda_stream *s, const ml_op_args *add, const ml_op_args *norm,
                      const ml_fp8_out &codes) {
    ML_CUDA_TYPED(norm->out[0].dtype, sum_norm<T>(s, add, norm, codes));
}

void ml_cuda_norm(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_out &codes) {
    ML_CUDA_TYPED(a->out[0].dtype, norm_forward<T>(&s->base, a, codes));
}

void ml_cuda_rmsnorm_forward(ml_stream *s, const ml_op_args *a) {
    ml_cuda_norm(ml_cuda(s), a, {});
}

void ml_cuda_rmsnorm_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, norm_backward<T>(s, a));
}
