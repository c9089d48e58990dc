/* norm.cu - RMSNORM.
 *
 * A team of threads (a warp, or a block for wide groups) has a group; each thread keeps its
 * pairs of numbers in registers.  Team and pairs follow from the width alone. */
#include "backend/cuda/common.cuh"

enum { THREADS = 256, MAX_CHUNKS = 528 /* four for each multiprocessor of an H200 */ };

template <class T> struct norm_call {
    T *y, *dx;
    const T *x, *dy;
    const float *w;
    float *part; /* [chunks, width] sums of dw, or NULL */
    int64_t n_group, per_chunk;
    int64_t first, step; /* group i is the (first + i step)th of the batch */
    int width, n_weight; /* group g of the batch has weight row g mod n_weight */
    float eps;
    bool plus_one, add;
};

/* TEAM threads with up to PAIRS pairs each. */
template <int TEAM> __device__ static float team_sum(float x, float *room) {
    return TEAM == 32 ? ml_warp_sum(x) : ml_block_sum<TEAM / 32>(x, room);
}

template <class T, int TEAM, int PAIRS>
__device__ static void load_pairs(float (&v)[PAIRS][2], const T *from, int lane,
                                  int width) {
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int i = 2 * (lane + TEAM * j);
        v[j][0] = v[j][1] = 0.0f;
        if (width % 2 == 0 && i < width)
            ml_load(v[j], from + i);
        for (int k = 0; width % 2 && k < 2; k++)
            if (i + k < width)
                v[j][k] = ml_f32(from[i + k]);
    }
}

template <class T>
__device__ static void store_pair(T *to, const float (&v)[2], int i, int width) {
    if (width % 2 == 0 && i < width)
        ml_store(to + i, v);
    for (int k = 0; width % 2 && k < 2; k++)
        if (i + k < width)
            to[i + k] = ml_as<T>(v[k]);
}

template <int PAIRS>
__device__ static float dot(const float (&a)[PAIRS][2], const float (&b)[PAIRS][2]) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        sum = fmaf(a[j][1], b[j][1], fmaf(a[j][0], b[j][0], sum));
    return sum;
}

template <int TEAM, int PAIRS>
__device__ static void load_weight(float (&w)[PAIRS][2], const float *from, int lane,
                                   int width, bool plus_one) {
    load_pairs<float, TEAM, PAIRS>(w, from, lane, width);
#pragma unroll
    for (int j = 0; plus_one && j < PAIRS; j++) {
        w[j][0] += 1.0f;
        w[j][1] += 1.0f;
    }
}

template <class T, int TEAM, int PAIRS> __global__ void norm_kernel(norm_call<T> c) {
    __shared__ float room[THREADS / 32];
    int lane = (int)threadIdx.x % TEAM;
    int64_t g = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    float x[PAIRS][2], w[PAIRS][2], r;
    const float *weight = c.w + g % c.n_weight * c.width;

    if (g >= c.n_group) /* of a block-wide team: all of it */
        return;
    load_pairs<T, TEAM, PAIRS>(x, c.x + g * c.width, lane, c.width);
    load_weight<TEAM, PAIRS>(w, weight, lane, c.width, c.plus_one);
    r = 1.0f / sqrtf(team_sum<TEAM>(dot(x, x), room) / (float)c.width + c.eps);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int i = 2 * (lane + TEAM * j);
        x[j][0] = (x[j][0] * r) * w[j][0];
        x[j][1] = (x[j][1] * r) * w[j][1];
        store_pair(c.y + g * c.width, x[j], i, c.width);
    }
}

template <class T> __device__ static float weight_at(const norm_call<T> &c, int i) {
    return i < c.width ? c.w[i] + (c.plus_one ? 1.0f : 0.0f) : 0.0f;
}

/* One group of backward: writes dx, adds to the thread's sums of dw.  Weights are read where they
 * are used: registers are what there is least of. */
template <class T, int TEAM, int PAIRS>
__device__ static void back_group(const norm_call<T> &c, int64_t g, int lane,
                                  float (&dw)[PAIRS][2], float *room) {
    float h[PAIRS][2], dy[PAIRS][2], m = 0.0f, r;

    load_pairs<T, TEAM, PAIRS>(h, c.x + g * c.width, lane, c.width);
    load_pairs<T, TEAM, PAIRS>(dy, c.dy + g * c.width, lane, c.width);
    r = 1.0f / sqrtf(team_sum<TEAM>(dot(h, h), room) / (float)c.width + c.eps);
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            h[j][k] *= r;
            dw[j][k] = fmaf(dy[j][k], h[j][k], dw[j][k]);
            dy[j][k] *= weight_at(c, 2 * (lane + TEAM * j) + k);
            m = fmaf(dy[j][k], h[j][k], m);
        }
    m = -(team_sum<TEAM>(m, room) / (float)c.width);
    if (!c.dx)
        return;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        float old[1][2] = {}, d[2];
        if (c.add)
            load_pairs<T, TEAM, 1>(old, c.dx + g * c.width, lane + TEAM * j, c.width);
        d[0] = fmaf(r, fmaf(h[j][0], m, dy[j][0]), old[0][0]);
        d[1] = fmaf(r, fmaf(h[j][1], m, dy[j][1]), old[0][1]);
        store_pair(c.dx + g * c.width, d, 2 * (lane + TEAM * j), c.width);
    }
}

/* A block goes through the groups of a chunk; its teams' sums are added in their order. */
template <class T, int TEAM, int PAIRS> __global__ void norm_back_kernel(norm_call<T> c) {
    const int TEAMS = THREADS / TEAM;
    __shared__ float room[THREADS / 32];
    __shared__ float sums[TEAMS > 1 ? TEAMS : 1][TEAMS > 1 ? 2 * TEAM * PAIRS : 1];
    int lane = (int)threadIdx.x % TEAM, team = (int)threadIdx.x / TEAM;
    int64_t first = (int64_t)blockIdx.x * c.per_chunk;
    int64_t end = first + c.per_chunk < c.n_group ? first + c.per_chunk : c.n_group;
    float dw[PAIRS][2] = {};

    for (int64_t g = first + team; g < end; g += TEAMS)
        back_group<T, TEAM, PAIRS>(c, c.first + g * c.step, lane, dw, room);
    if (!c.part)
        return;
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int i = 2 * (lane + TEAM * j) + k;
            if (TEAMS > 1)
                sums[TEAMS > 1 ? team : 0][TEAMS > 1 ? i : 0] = dw[j][k];
            else if (i < c.width)
                c.part[(int64_t)blockIdx.x * c.width + i] = dw[j][k];
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; TEAMS > 1 && i < c.width; i += THREADS) {
        float sum = 0.0f;
        for (int t = 0; t < TEAMS; t++)
            sum += sums[t][TEAMS > 1 ? i : 0];
        c.part[(int64_t)blockIdx.x * c.width + i] = sum;
    }
}

/* dw += the chunks' sums, in their order. */
__global__ static void norm_dw_kernel(float *dw, const float *part, int chunks, int width) {
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    float sum = 0.0f;

    if (i >= width)
        return;
    for (int k = 0; k < chunks; k++)
        sum += part[(int64_t)k * width + i];
    dw[i] += sum;
}

/* Chunks of a number of groups: a function of it alone, as gradients must not depend on more. */
static int64_t groups_per_chunk(int64_t n_group) {
    int64_t per = (n_group + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return per < 16 ? 16 : per;
}

size_t ml_cuda_rmsnorm_scratch(const ml_op_args *a, bool backward) {
    return backward ? (size_t)MAX_CHUNKS * (size_t)a->attr->norm.width * sizeof(float) : 0;
}

template <class T, int TEAM, int PAIRS>
static void norm_launch(ml_stream *s, const norm_call<T> &c, bool back) {
    cudaStream_t stream = ml_cuda(s)->stream;
    if (back)
        norm_back_kernel<T, TEAM, PAIRS>
            <<<ml_cuda_blocks(c.n_group, c.per_chunk), THREADS, 0, stream>>>(c);
    else
        norm_kernel<T, TEAM, PAIRS>
            <<<ml_cuda_blocks(c.n_group, THREADS / TEAM), THREADS, 0, stream>>>(c);
    ml_cuda_launched(ml_cuda(s), back ? "rmsnorm backward" : "rmsnorm");
}

template <class T> static void norm_run(ml_stream *s, const norm_call<T> &c, bool back) {
    if (c.n_group == 0)
        return;
    if (c.width <= 128)
        norm_launch<T, 32, 2>(s, c, back);
    else if (c.width <= 256)
        norm_launch<T, 32, 4>(s, c, back);
    else if (c.width <= 1024)
        norm_launch<T, 32, 16>(s, c, back);
    else if (c.width <= 4096)
        norm_launch<T, 256, 8>(s, c, back);
    else
        norm_launch<T, 256, 16>(s, c, back);
}

template <class T> static norm_call<T> norm_open(const ml_op_args *a) {
    norm_call<T> c = {};

    c.x = (const T *)a->in[0].data;
    c.w = (const float *)a->w[0].data;
    c.width = a->attr->norm.width;
    c.n_weight = (int)(a->w[0].shape[0] / c.width);
    c.step = 1;
    c.n_group = ml_tensor_count(&a->in[0]) / c.width;
    c.per_chunk = groups_per_chunk(c.n_group);
    c.eps = a->attr->norm.eps;
    c.plus_one = a->attr->norm.plus_one;
    return c;
}

template <class T> static void norm_forward(ml_stream *s, const ml_op_args *a) {
    norm_call<T> c = norm_open<T>(a);

    c.y = (T *)a->out[0].data;
    norm_run<T>(s, c, false);
}

/* Groups that share a weight, one weight after the other. */
template <class T> static void norm_backward(ml_stream *s, const ml_op_args *a) {
    norm_call<T> c = norm_open<T>(a);

    c.dy = (const T *)a->dout[0].data;
    c.dx = (T *)a->din[0].data;
    c.add = a->din_add[0];
    c.part = a->dw[0].data ? (float *)a->scratch : NULL;
    c.n_group /= c.n_weight;
    c.per_chunk = groups_per_chunk(c.n_group);
    c.step = c.n_weight;
    for (; c.first < c.n_weight && c.n_group; c.first++, c.w += c.width) {
        norm_run<T>(s, c, true);
        if (c.part)
            norm_dw_kernel<<<ml_cuda_blocks(c.width, THREADS), THREADS, 0,
                             ml_cuda(s)->stream>>>(
                (float *)a->dw[0].data + c.first * c.width, c.part,
                (int)ml_cuda_blocks(c.n_group, c.per_chunk), c.width);
        ml_cuda_launched(ml_cuda(s), "rmsnorm weight gradient");
    }
}

void ml_cuda_rmsnorm_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, norm_forward<T>(s, a));
}

void ml_cuda_rmsnorm_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, norm_backward<T>(s, a));
}
