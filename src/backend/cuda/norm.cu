/* norm.cu - RMSNORM.
 *
 * A team of threads (half a warp, a warp, or several warps for wide groups) has a group; each
 * thread keeps its packs of numbers in registers.  Team and packs depend on the width
 * only, and are such that few threads have no pack.
 *
 * The order of a wide group's sum of squares is that of 256 threads, whatever the team: pack
 * i is thread i mod 256's, a warp's threads are added by a tree, and the eight warps in order.
 * That of a narrow group is that of 16 threads, added by a tree.
 * (Fused kernels have the same order: gemm_skinny.cu, gemm_codes.cu.) */
#include "backend/cuda/fp8/fp8_out.cuh"
#include "backend/cuda/fuse.cuh"
#include "backend/cuda/stored.cuh"

enum {
    THREADS = 256,
    DW_THREADS = 1024,
    DW_COLUMNS = 32, /* that a block sums; a warp takes every DW_WAYS-th chunk */
    DW_WAYS = DW_THREADS / DW_COLUMNS
};

template <class T> struct norm_call {
    T *y, *dx; /* y NULL: only the codes are read */
    ml_fp8_out codes;
    const T *x, *dy;
    const T *plus; /* forward: the norm is of x + plus, which is written to sum; or NULL */
    T *sum;
    const float *w; /* NULL: 1 */
    float *part;    /* [chunks, width] sums of dw, or NULL */
    const float
        *cs;     /* backward: dy is RoPE's, with these angles [tokens, width]; or NULL */
    int heads;   /* groups of a token, then */
    int64_t gap; /* and numbers between two tokens of dx */
    int64_t n_group, per_chunk;
    int64_t first, step; /* group i is the (first + i step)th of the batch */
    int width, n_weight; /* group g of the batch has weight row g mod n_weight */
    float eps;
    bool plus_one, add;
};

/* How threads share a group: TEAM threads with PACKS packs of V numbers each. */
template <int TEAM_, int PACKS_, int V_> struct shares {
    static const int TEAM = TEAM_, PACKS = PACKS_, V = V_;
    static const int WARPS = TEAM_ > 32 ? TEAM_ / 32 : 1; /* of a team */
    static const int TEAMS = THREADS / TEAM_;
    static const int PARTS = TEAM_ > 32 ? 8 : TEAM_ == 8 ? 2 : 1; /* of a sum of squares */
    static const int OWN = PARTS / WARPS; /* those that a warp has packs of */
    /* Backward: groups that a team loads before it computes, or else the next one meanwhile, where
     * registers suffice. */
    static const int GROUPS = TEAM_ == 8 ? 2 : 1;
    static const bool AHEAD = GROUPS == 1 && PACKS_ * V_ <= 24;
};

/* Forward of a few groups: the weight is loaded before the wait for x, and outputs are kept until all are computed,
 * where registers suffice.  MANY groups are faster with fewer registers, since more blocks are resident. */
template <class S, bool MANY> struct forward_order {
    static const bool EARLY = !MANY && S::PACKS * S::V <= 40;
    static const int KEPT = EARLY ? S::PACKS : 1;
};
enum { MANY_GROUPS = 1024 };

/* Of the block's teams: parts of two sums, used in turn, so that one barrier for a sum is
 * enough. */
template <class S> struct team_sums { float part[2][S::TEAMS][S::PARTS]; };

/* The thread's packs of a group. */
template <class S, class T> struct packs { ml_stored<T, S::V> at[S::PACKS]; };

/* The barriers' numbers are constants, so that a block has no more of them than it needs. */
template <class S, int I = 0> __device__ static void team_sync(void) {
    if constexpr (I < S::TEAMS) {
        if (threadIdx.x / S::TEAM == I)
            asm volatile("bar.sync %0, %1;" ::"n"(1 + I), "n"(S::TEAM) : "memory");
        else
            team_sync<S, I + 1>();
    }
}

template <class S> __device__ static float tree_sum(float x) {
#pragma unroll
    for (int w = (S::TEAM < 32 ? S::TEAM : 32) / 2; w; w >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, w);
    return x;
}

/* Over the team, of N parts of each thread: a tree for a part of a warp, then warp w's part k is added as the
 * (w + WARPS k)th.  In a team of less than a warp, the parts are the first level of the tree. */
template <class S, int N>
__device__ static float team_sum(const float (&own)[N], float (&part)[S::TEAMS][S::PARTS]) {
    float sum = 0.0f;

    if constexpr (S::TEAM <= 32) {
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += own[k];
        return tree_sum<S>(sum);
    } else {
        int team = (int)threadIdx.x / S::TEAM, warp = (int)threadIdx.x / 32 % S::WARPS;
#pragma unroll
        for (int k = 0; k < N; k++) {
            float x = tree_sum<S>(own[k]);
            if (threadIdx.x % 32 == 0)
                part[team][warp + S::WARPS * k] = x;
        }
        team_sync<S>();
#pragma unroll
        for (int i = 0; i < N * S::WARPS; i++)
            sum += part[team][i];
        return sum;
    }
}

template <class S, class T> __device__ static void forget(packs<S, T> &x) {
#pragma unroll
    for (int j = 0; j < S::PACKS; j++)
        x.at[j].forget();
}

/* The first column of a thread's pack j. */
template <class S> __device__ static int pack_at(int lane, int j) {
    return S::V * (lane + S::TEAM * j);
}

template <class S, class T>
__device__ static void load_packs(packs<S, T> &to, const T *from, int lane, int width) {
#pragma unroll
    for (int j = 0; j < S::PACKS; j++)
        if (pack_at<S>(lane, j) < width)
            to.at[j].load(from + pack_at<S>(lane, j));
        else
            to.at[j].clear();
}

template <class S, class T>
__device__ static void load_weight(float (&w)[S::V], const norm_call<T> &c,
                                   const float *from, int i) {
#pragma unroll
    for (int k = 0; k < S::V; k++)
        w[k] = 0.0f;
    if (c.w && i < c.width)
        ml_load(w, from + i);
#pragma unroll
    for (int k = 0; k < S::V; k++)
        w[k] += c.plus_one || !c.w ? 1.0f : 0.0f;
}

/* x += y, rounded as ADD does. */
template <class S, class T>
__device__ static void add_packs(packs<S, T> &x, const packs<S, T> &y) {
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        float a[S::V], b[S::V];
        x.at[j].get(a);
        y.at[j].get(b);
#pragma unroll
        for (int k = 0; k < S::V; k++)
            a[k] += b[k];
        x.at[j].set(a);
    }
}

/* 1 / the root mean square of a group. */
template <class S, class T>
__device__ static float scale_of(const packs<S, T> &x, const norm_call<T> &c,
                                 float (&part)[S::TEAMS][S::PARTS]) {
    float own[S::OWN] = {};

#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        float v[S::V];
        x.at[j].get(v);
#pragma unroll
        for (int k = 0; k < S::V; k++)
            own[j % S::OWN] = fmaf(v[k], v[k], own[j % S::OWN]);
    }
    return 1.0f / sqrtf(team_sum<S>(own, part) / (float)c.width + c.eps);
}

/* A half-warp has whole groups of codes where V is 8: they are wanted of widths that are multiples of 128 only. */
template <class S, class T, int KEPT>
__device__ static void put_codes(const norm_call<T> &c, int64_t g, int first, int width,
                                 const float (&y)[KEPT][S::V]) {
    if constexpr (S::V == ML_FP8_LANE && S::TEAM >= ML_FP8_LANES)
        if (c.codes.code)
            ml_fp8_put_packs<KEPT>(c.codes, g, first, S::V * S::TEAM, width, y);
}

template <class S, class T, bool MANY>
__global__ void __launch_bounds__(THREADS) norm_kernel(norm_call<T> c) {
    const bool EARLY = forward_order<S, MANY>::EARLY;
    const int KEPT = forward_order<S, MANY>::KEPT;
    __shared__ team_sums<S> sums;
    int lane = (int)threadIdx.x % S::TEAM;
    int64_t g = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM, at = g * c.width;
    /* No early return: a warp's teams shuffle together. */
    int width = g < c.n_group ? c.width : 0;
    const float *weight = c.n_weight > 1 ? c.w + g % c.n_weight * c.width : c.w;
    float w[KEPT][S::V], y[KEPT][S::V], r;
    packs<S, T> x;

    ml_grid_release();
#pragma unroll
    for (int j = 0; EARLY && j < KEPT; j++)
        load_weight<S>(w[j], c, weight, pack_at<S>(lane, j));
    ml_grid_wait();
    load_packs<S>(x, c.x + at, lane, width);
    if (c.plus) {
        packs<S, T> plus;
        load_packs<S>(plus, c.plus + at, lane, width);
        add_packs<S>(x, plus);
    }
    r = scale_of<S>(x, c, sums.part[0]);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        int i = pack_at<S>(lane, j), k = j % KEPT;
        float v[S::V];
        x.at[j].get(v);
        if (c.sum && i < width)
            ml_store(c.sum + at + i, v);
        if (!EARLY)
            load_weight<S>(w[k], c, weight, i);
#pragma unroll
        for (int e = 0; e < S::V; e++)
            y[k][e] = (v[e] * r) * w[k][e];
        if (c.y && i < width)
            ml_store(c.y + at + i, y[k]);
        if (!EARLY || j == S::PACKS - 1)
            put_codes<S>(c, g, pack_at<S>(lane, j - k), width, y);
    }
}

template <class S, class T> struct back_packs { packs<S, T> x, dy; };

/* Of group i of the chunk's; i >= end: none. */
template <class S, class T>
__device__ static void load_back(back_packs<S, T> &b, const norm_call<T> &c, int64_t i,
                                 int64_t end, int lane) {
    int64_t at = (c.first + i * c.step) * c.width;
    int width = i < end ? c.width : 0;

    load_packs<S>(b.x, c.x + at, lane, width);
    load_packs<S>(b.dy, c.dy + at, lane, width);
}

/* The gradient of RoPE's input from that of its output, rounded as ROPE does: the inverse of a
 * rotation has the same angles, negative.  A thread's two packs are half a head apart. */
template <class S>
__device__ static void turn_back(packs<S, bf16> &dy, const norm_call<bf16> &c, int64_t i,
                                 int64_t end, int lane) {
    const int half = S::TEAM * S::V;
    const float *cs = c.cs + (int64_t)((uint32_t)i / (uint32_t)c.heads) * (2 * half) +
                      pack_at<S>(lane, 0);
    float d[2][S::V], cosine[S::V], sine[S::V];

    if (i >= end)
        return;
    dy.at[0].get(d[0]);
    dy.at[1].get(d[1]);
    ml_load(cosine, cs);
    ml_load(sine, cs + half);
#pragma unroll
    for (int k = 0; k < S::V; k++) {
        float low = d[0][k], high = d[1][k];
        d[0][k] = fmaf(low, cosine[k], -(high * -sine[k]));
        d[1][k] = fmaf(high, cosine[k], low * -sine[k]);
    }
    dy.at[0].set(d[0]);
    dy.at[1].set(d[1]);
}

/* Backward of one group: writes dx, adds to the thread's sums of dw.  The weight, which stays in
 * the L1 cache, is loaded twice instead of kept in registers. */
template <class S, class T>
__device__ static void back_group(back_packs<S, T> &b, const norm_call<T> &c, int64_t i,
                                  int64_t end, int lane, float (&dw)[S::PACKS][S::V],
                                  team_sums<S> &sums) {
    T *dx = c.dx + (c.first + i * c.step) * c.width;
    int width = i < end && c.dx ? c.width : 0;
    float r, m[1] = {};
    packs<S, T> old;

    if constexpr (S::TEAM == 8 && sizeof(T) == sizeof(bf16))
        if (c.cs) {
            turn_back<S>(b.dy, c, i, end, lane);
            dx += (int64_t)((uint32_t)i / (uint32_t)c.heads) * c.gap;
        }
    load_packs<S>(old, dx, lane, c.add ? width : 0);
    r = scale_of<S>(b.x, c, sums.part[0]);
    forget<S>(b.x);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        float h[S::V], d[S::V], w[S::V];
        b.x.at[j].get(h);
        b.dy.at[j].get(d);
        load_weight<S>(w, c, c.w, pack_at<S>(lane, j));
#pragma unroll
        for (int k = 0; k < S::V; k++) {
            h[k] *= r;
            dw[j][k] = fmaf(d[k], h[k], dw[j][k]);
            m[0] = fmaf(d[k] * w[k], h[k], m[0]);
        }
    }
    m[0] = -(team_sum<S>(m, sums.part[1]) / (float)c.width);
    forget<S>(b.x);
    forget<S>(b.dy);
#pragma unroll
    for (int j = 0; j < S::PACKS; j++) {
        int at = pack_at<S>(lane, j);
        float h[S::V], d[S::V], w[S::V], o[S::V];
        if (at >= width)
            continue;
        b.x.at[j].get(h);
        b.dy.at[j].get(d);
        old.at[j].get(o);
        load_weight<S>(w, c, c.w, at);
#pragma unroll
        for (int k = 0; k < S::V; k++)
            d[k] = fmaf(r, fmaf(h[k] * r, m[0], d[k] * w[k]), o[k]);
        ml_store(dx + at, d);
    }
}

/* A block loops over the groups of a chunk; its teams' sums of dw are added in order, in f64:
 * ranks that share a batch have other chunks, and their gradients are compared with one rank's. */
template <class S, class T>
__global__ void __launch_bounds__(THREADS, S::PACKS *S::V > 32 ? 1
                                           : S::GROUPS > 1     ? 3
                                                               : 2)
    norm_back_kernel(norm_call<T> c) {
    extern __shared__ float sums[]; /* [TEAMS][width] */
    __shared__ team_sums<S> team_part;
    int lane = (int)threadIdx.x % S::TEAM, team = (int)threadIdx.x / S::TEAM;
    int64_t first = (int64_t)blockIdx.x * c.per_chunk;
    int64_t end = first + c.per_chunk < c.n_group ? first + c.per_chunk : c.n_group;
    float dw[S::PACKS][S::V] = {}, *to;
    back_packs<S, T> now[S::GROUPS], next;

    if (S::AHEAD)
        load_back<S>(next, c, first + team, end, lane);
    for (; first < end; first += S::TEAMS * S::GROUPS) {
        int64_t i = first + team * S::GROUPS;
#pragma unroll
        for (int k = 0; k < S::GROUPS; k++)
            if (S::AHEAD)
                now[k] = next;
            else
                load_back<S>(now[k], c, i + k, end, lane);
        if (S::AHEAD)
            load_back<S>(next, c, i + S::TEAMS, end, lane);
#pragma unroll
        for (int k = 0; k < S::GROUPS; k++)
            back_group<S>(now[k], c, i + k, end, lane, dw, team_part);
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
        double sum = 0.0;
        for (int t = 0; t < S::TEAMS; t++)
            sum += (double)sums[t * c.width + i];
        c.part[(int64_t)blockIdx.x * c.width + i] = (float)sum;
    }
}

/* dw += the chunks' partial sums, in f64. */
__global__ static void norm_dw_kernel(float *dw, const float *part, int chunks, int width) {
    __shared__ double smem[DW_WAYS][DW_COLUMNS];
    int col = (int)threadIdx.x % DW_COLUMNS, way = (int)threadIdx.x / DW_COLUMNS;
    int i = (int)blockIdx.x * DW_COLUMNS + col;
    double sum = 0.0;

#pragma unroll 4
    for (int k = way; i < width && k < chunks; k += DW_WAYS)
        sum += (double)part[(int64_t)k * width + i];
    smem[way][col] = sum;
    __syncthreads();
    if (way || i >= width)
        return;
    for (int k = 1; k < DW_WAYS; k++)
        sum += smem[k][col];
    dw[i] = (float)((double)dw[i] + sum);
}

/* A function of group count and width only, so that gradients are deterministic. */
static int64_t groups_per_chunk(int64_t n_group, int width) {
    int64_t per = (n_group + ml_cuda_norm_chunks(width) - 1) / ml_cuda_norm_chunks(width);
    return per < 16 ? 16 : per;
}

template <class S, class T>
static void launch_forward(ml_stream *s, const norm_call<T> &c) {
    const bool can_be_many = S::V == 8 && S::TEAM > 8 && S::PACKS <= 4;
    auto kernel = norm_kernel<S, T, false>;

    if (can_be_many && c.n_group >= MANY_GROUPS)
        kernel = norm_kernel<S, T, can_be_many>;
    ml_cuda_launch(ml_cuda(s), "rmsnorm", kernel, dim3(ml_cuda_blocks(c.n_group, S::TEAMS)),
                   THREADS, 0, c);
}

template <class S, class T>
static void launch_backward(ml_stream *s, const norm_call<T> &c) {
    size_t sums = S::TEAMS == 1 ? 0 : (size_t)S::TEAMS * (size_t)c.width * sizeof(float);

    norm_back_kernel<S, T>
        <<<ml_cuda_blocks(c.n_group, c.per_chunk), THREADS, sums, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), "rmsnorm backward");
}

template <class T> static void run_forward(ml_stream *s, const norm_call<T> &c) {
    if (c.n_group == 0)
        return;
    if (c.width % 8 && c.width <= 256)
        launch_forward<shares<32, 8, 1>>(s, c);
    else if (c.width % 8)
        launch_forward<shares<256, 32, 1>>(s, c);
    else if (c.width <= ML_NORM_NARROW)
        launch_forward<shares<8, 2, 8>>(s, c);
    else if (c.width <= 1024)
        launch_forward<shares<32, 4, 8>>(s, c);
    else if (c.width <= 3072)
        launch_forward<shares<128, 3, 8>>(s, c);
    else if (c.width <= 4096)
        launch_forward<shares<256, 2, 8>>(s, c);
    else if (c.width <= 6144)
        launch_forward<shares<256, 3, 8>>(s, c);
    else if (c.width <= ML_NORM_WIDE)
        launch_forward<shares<256, 4, 8>>(s, c);
    else
        launch_forward<shares<256, ML_NORM_WIDEST / 2048, 8>>(s, c);
}

/* Sums of dw need registers, too: larger teams. */
template <class T> static void run_backward(ml_stream *s, const norm_call<T> &c) {
    if (c.n_group == 0)
        return;
    if (c.width % 8 && c.width <= 256)
        launch_backward<shares<32, 8, 1>>(s, c);
    else if (c.width % 8)
        launch_backward<shares<256, 32, 1>>(s, c);
    else if (c.width <= ML_NORM_NARROW)
        launch_backward<shares<8, 2, 8>>(s, c);
    else if (c.width <= 1024)
        launch_backward<shares<32, 4, 8>>(s, c);
    else if (c.width <= 3072)
        launch_backward<shares<128, 3, 8>>(s, c);
    else if (c.width <= 6144)
        launch_backward<shares<256, 3, 8>>(s, c);
    else if (c.width <= ML_NORM_WIDE)
        launch_backward<shares<256, 4, 8>>(s, c);
    else
        launch_backward<shares<256, ML_NORM_WIDEST / 2048, 8>>(s, c);
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
    run_forward<T>(s, c);
}

/* Loops over the weights; a launch has the groups that share one.  rope: of the norm's outputs, or NULL; ld is the row
 * stride of din then. */
template <class T>
static void norm_backward(ml_stream *s, const ml_op_args *a, const ml_op_args *rope,
                          int64_t ld) {
    norm_call<T> c = norm_open<T>(a);

    c.dy = (const T *)(rope ? rope : a)->dout[0].data;
    if (rope) {
        c.cs = (const float *)rope->in[1].data;
        c.heads = (int)(a->in[0].shape[1] / c.width);
        c.gap = ld - a->in[0].shape[1];
    }
    c.dx = (T *)a->din[0].data;
    c.add = a->din_add[0];
    c.part = a->dw[0].data ? (float *)a->scratch : NULL;
    c.n_group /= c.n_weight;
    c.per_chunk = groups_per_chunk(c.n_group, c.width);
    c.step = c.n_weight;
    for (; c.first < c.n_weight && c.n_group; c.first++, c.w += c.w ? c.width : 0) {
        run_backward<T>(s, c);
        if (c.part)
            norm_dw_kernel<<<ml_cuda_blocks(c.width, DW_COLUMNS), DW_THREADS, 0,
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
    run_forward<T>(&s->base, c);
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
    ML_CUDA_TYPED(a->dout[0].dtype, norm_backward<T>(s, a, NULL, 0));
}

void ml_cuda_norm_rope_back(ml_cuda_stream *s, const ml_op_args *norm,
                            const ml_op_args *rope, int64_t ld) {
    norm_backward<bf16>(&s->base, norm, rope, ld);
}
