/* moe.cu - MoE routing, gather, weights of expert inputs and combine.
 *
 * A token's choice of rank r is pair token*k + r; the pairs sorted by expert, then
 * token, are the slots (see `group` in ops.h). */
#include "backend/cuda/moe/moe.cuh"

enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    EACH = 8,     /* pairs of a thread */
    GATHERED = 4, /* slots of a block */
    RANKS = 8     /* of a token, loaded together */
};

/* ---- routing: a warp per token ---- */

template <class T> struct route_call {
    const T *logits;
    T *dlogits;
    const float *bias, *dweight;
    float *weight;
    int32_t *expert;
    const int32_t *given; /* routing replay, or NULL; may be the memory of expert */
    const float *table;   /* [n_token, k] the experts of each token, or NULL: selected */
    int n_token, n, k, n_group, top_group;
    float scale;
    bool sigmoid, sqrt_softplus, renorm, add;
};

/* NaN counts as less than any number, so that the chosen experts are always distinct. */
__device__ static float rank_of(float x) {
    return x == x ? x : -INFINITY;
}

/* The best of n after `last` in the order of descending value, then ascending index. */
__device__ static int next_best(const float *p, int n, int last) {
    float limit = last < 0 ? 0.0f : rank_of(p[last]), best_p = 0.0f;
    int best = -1;

    for (int e = (int)threadIdx.x % 32; e < n; e += 32) {
        float q = rank_of(p[e]);
        bool open = last < 0 || q < limit || (q == limit && e > last);
        if (open && (best < 0 || q > best_p)) {
            best = e;
            best_p = q;
        }
    }
    for (int w = 16; w; w >>= 1) {
        int other = __shfl_xor_sync(0xffffffffu, best, w);
        float q = __shfl_xor_sync(0xffffffffu, best_p, w);
        if (other >= 0 && (best < 0 || q > best_p || (q == best_p && other < best))) {
            best = other;
            best_p = q;
        }
    }
    return best;
}

/* Group-limited top-k (DeepSeek-V3): experts outside the best groups get -inf.  A
 * group's score is the sum of its two best experts. */
template <class T>
__device__ static void keep_groups(float *choice, float *worth, const route_call<T> &c) {
    int size = c.n / c.n_group, last = -1;

    for (int g = 0; g < c.n_group; g++) {
        int first = next_best(choice + g * size, size, -1);
        int second = next_best(choice + g * size, size, first);
        if (threadIdx.x % 32 == 0)
            worth[g] = choice[g * size + first] + choice[g * size + second];
    }
    __syncwarp();
    for (int i = 0; i < c.n_group; i++) {
        last = next_best(worth, c.n_group, last);
        for (int e = (int)threadIdx.x % 32; i >= c.top_group && e < size; e += 32)
            choice[last * size + e] = -INFINITY;
        __syncwarp();
    }
}

/* sqrt(log(1 + e^x)) in f64, rounded once. */
__device__ static float sqrt_softplus(float x) {
    return (float)sqrt(fmax((double)x, 0.0) + log1p(exp(-fabs((double)x))));
}

template <class T>
__device__ static void scores(float *p, const T *x, const route_call<T> &c) {
    int lane = (int)threadIdx.x % 32;
    float m = -INFINITY, sum = 0.0f;

    for (int e = lane; c.sqrt_softplus && e < c.n; e += 32)
        p[e] = sqrt_softplus(ml_f32(x[e]));
    __syncwarp();
    if (c.sqrt_softplus)
        return;
    for (int e = lane; e < c.n; e += 32)
        m = ml_max(m, ml_f32(x[e]));
    m = ml_warp_max(m);
    for (int e = lane; e < c.n; e += 32) {
        p[e] = c.sigmoid ? ml_sigmoid(ml_f32(x[e])) : ml_exp(ml_f32(x[e]) - m);
        sum += p[e];
    }
    sum = ml_warp_sum(sum);
    for (int e = lane; e < c.n && !c.sigmoid; e += 32)
        p[e] /= sum;
    __syncwarp();
}

/* The divisor of the chosen scores. */
template <class T>
__device__ static float chosen_sum(const float *p, const int32_t *expert,
                                   const route_call<T> &c) {
    float sum = 0.0f;
    if (!c.renorm)
        return 1.0f;
    for (int r = 0; r < c.k; r++)
        sum += p[expert[r]];
    return c.sigmoid || c.sqrt_softplus ? sum + 1e-20f : sum;
}

/* Loading checks the tables; other numbers must not leave the tensors. */
__device__ static int32_t expert_of(float number, int n) {
    return number >= 0.0f && number < (float)n ? (int32_t)number : 0;
}

/* The best k experts by score plus bias. */
template <class T>
__device__ static void choose(int32_t *chosen, const float *p, float *choice, float *worth,
                              const route_call<T> &c) {
    int lane = (int)threadIdx.x % 32, last = -1;

    for (int e = lane; e < c.n; e += 32)
        choice[e] = c.bias ? p[e] + c.bias[e] : p[e];
    __syncwarp();
    if (c.n_group > 1)
        keep_groups(choice, worth, c);
    for (int r = 0; r < c.k; r++) {
        last = next_best(choice, c.n, last);
        if (lane == 0)
            chosen[r] = last;
    }
}

template <class T> __global__ void route_kernel(route_call<T> c) {
    __shared__ float score[WARPS][ML_MOE_EXPERTS], choice[WARPS][ML_MOE_EXPERTS];
    __shared__ float worth[WARPS][ML_MOE_GROUPS];
    __shared__ int32_t chosen[WARPS][ML_MOE_TOP];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t t = (int64_t)blockIdx.x * WARPS + warp;
    const int32_t *given = c.given ? c.given + t * c.k : NULL;
    float *p = score[warp], sum;

    ml_grid_release();
    ml_grid_wait();
    if (t >= c.n_token)
        return;
    scores(p, c.logits + t * c.n, c);
    if (given && given[0] >= 0)
        for (int r = lane; r < c.k; r += 32)
            chosen[warp][r] = given[r];
    else if (c.table)
        for (int r = lane; r < c.k; r += 32)
            chosen[warp][r] = expert_of(c.table[t * c.k + r], c.n);
    else
        choose(chosen[warp], p, choice[warp], worth[warp], c);
    __syncwarp();
    sum = chosen_sum(p, chosen[warp], c);
    for (int r = lane; r < c.k; r += 32) {
        c.expert[t * c.k + r] = chosen[warp][r];
        c.weight[t * c.k + r] = p[chosen[warp][r]] / sum * c.scale;
    }
}

/* The gradient of logit x, whose score is p; dot: the sum of dp p over all experts. */
template <class T>
__device__ static float logit_gradient(const route_call<T> &c, float x, float p, float dp,
                                       float dot) {
    if (c.sigmoid)
        return dp * (p * (1.0f - p));
    if (c.sqrt_softplus)
        return p > 0.0f ? (float)((double)dp / (1.0 + exp(-(double)x)) / (2.0 * (double)p))
                        : 0.0f;
    return p * (dp - dot);
}

template <class T> __global__ void route_back_kernel(route_call<T> c) {
    __shared__ float score[WARPS][ML_MOE_EXPERTS], slope[WARPS][ML_MOE_EXPERTS];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t t = (int64_t)blockIdx.x * WARPS + warp;
    const int32_t *expert = c.expert + t * c.k;
    const float *dweight = c.dweight + t * c.k;
    float *p = score[warp], *dp = slope[warp], sum, mean = 0.0f, dot = 0.0f;

    if (t >= c.n_token)
        return;
    scores(p, c.logits + t * c.n, c);
    for (int e = lane; e < c.n; e += 32)
        dp[e] = 0.0f;
    __syncwarp();
    sum = chosen_sum(p, expert, c);
    for (int r = 0; c.renorm && r < c.k; r++)
        mean += dweight[r] * c.scale * (p[expert[r]] / sum);
    for (int r = 0; r < c.k; r++) {
        float d = (dweight[r] * c.scale - mean) / sum;
        if (lane == 0)
            dp[expert[r]] = d;
        dot += d * p[expert[r]];
    }
    __syncwarp();
    for (int e = lane; e < c.n; e += 32) {
        float d = logit_gradient(c, ml_f32(c.logits[t * c.n + e]), p[e], dp[e], dot);
        T *to = c.dlogits + t * c.n + e;
        *to = ml_as<T>(c.add ? ml_f32(*to) + d : d);
    }
}

/* ---- slots: a counting sort, with a block per expert ---- */

/* The sum over the threads of a block. */
__device__ static int block_sum(int x, int *warps) {
    int sum = 0;

    for (int w = 16; w; w >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, w);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        sum += warps[i];
    __syncthreads(); /* `warps` may be used again */
    return sum;
}

__device__ static int sum_before(const int32_t *count, int n, int *warps) {
    int own = 0;

    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        own += count[i];
    return block_sum(own, warps);
}

__global__ static void count_kernel(int32_t *count, const int32_t *expert, int n_pair) {
    __shared__ int warps[WARPS];
    int own = 0;

    ml_grid_release();
    ml_grid_wait();
    for (int i = (int)threadIdx.x; i < n_pair; i += THREADS)
        own += expert[i] == (int)blockIdx.x;
    own = block_sum(own, warps);
    if (threadIdx.x == 0)
        count[blockIdx.x] = own;
}

/* Gives the slots of the block's expert to its pairs, in order. */
__global__ static void slot_kernel(int32_t *start, const int32_t *count,
                                   const int32_t *expert, int n_expert, int n_pair) {
    __shared__ int warps[WARPS];
    int32_t *pair_of = start + n_expert + 1, *slot_of = pair_of + n_pair;
    int e = (int)blockIdx.x, next, lane = (int)threadIdx.x % 32,
        warp = (int)threadIdx.x / 32;

    ml_grid_release();
    ml_grid_wait();
    next = sum_before(count, e, warps);
    if (threadIdx.x == 0) {
        start[e] = next;
        if (e == n_expert - 1)
            start[n_expert] = next + count[e];
    }
    for (int base = 0; base < n_pair; base += THREADS * EACH) {
        int first = base + (int)threadIdx.x * EACH, before = 0, all = 0, in_warp = 0;
        unsigned lower = (1u << lane) - 1;
        bool mine[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            unsigned found;
            mine[j] = first + j < n_pair && expert[first + j] == e;
            found = __ballot_sync(0xffffffffu, mine[j]);
            before += __popc(found & lower);
            in_warp += __popc(found);
        }
        if (lane == 0)
            warps[warp] = in_warp;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? warps[w] : 0;
            all += warps[w];
        }
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (mine[j]) {
                pair_of[next + before] = first + j;
                slot_of[first + j] = next + before++;
            }
        next += all;
        __syncthreads();
    }
}

template <class T> static route_call<T> route_open(const ml_op_args *a) {
    route_call<T> c = {};

    c.logits = (const T *)a->in[0].data;
    c.bias = (const float *)a->w[0].data;
    c.weight = (float *)a->out[0].data;
    c.expert = (int32_t *)a->out[1].data;
    c.given = (const int32_t *)a->given.data;
    c.table = (const float *)a->in[1].data;
    c.n_token = a->rows->n_token;
    c.n = a->attr->moe.n_expert;
    c.k = a->attr->moe.top_k;
    c.n_group = a->attr->moe.n_group;
    c.top_group = a->attr->moe.top_group;
    c.scale = a->attr->moe.scale;
    c.sigmoid = a->attr->moe.sigmoid;
    c.sqrt_softplus = a->attr->moe.sqrt_softplus;
    c.renorm = a->attr->moe.renorm;
    return c;
}

template <class T> static void route(ml_stream *s, const ml_op_args *a) {
    route_call<T> c = route_open<T>(a);
    int32_t *count = (int32_t *)a->scratch;
    int n_pair = c.n_token * c.k;

    if (c.n_token)
        ml_cuda_launch(ml_cuda(s), "moe-route", route_kernel<T>,
                       dim3(ml_cuda_blocks(c.n_token, WARPS)), THREADS, 0, c);
    ml_cuda_launch(ml_cuda(s), "moe-route", count_kernel, dim3((unsigned)c.n), THREADS, 0,
                   count, c.expert, n_pair);
    ml_cuda_launch(ml_cuda(s), "moe-route", slot_kernel, dim3((unsigned)c.n), THREADS, 0,
                   (int32_t *)a->out[2].data, count, c.expert, c.n, n_pair);
}

void ml_cuda_moe_route_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, route<T>(s, a));
}

template <class T> static void route_back(ml_stream *s, const ml_op_args *a) {
    route_call<T> c = route_open<T>(a);

    c.dweight = (const float *)a->dout[0].data;
    c.dlogits = (T *)a->din[0].data;
    c.add = a->din_add[0];
    if (c.n_token)
        route_back_kernel<T>
            <<<ml_cuda_blocks(c.n_token, WARPS), THREADS, 0, ml_cuda(s)->stream>>>(c);
    ml_cuda_launched(ml_cuda(s), "moe-route backward");
}

void ml_cuda_moe_route_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->in[0].dtype, route_back<T>(s, a));
}

/* ---- gather and combine ---- */

/* A block has GATHERED slots, whose rows are loaded together, V numbers per access. */
template <class T, int V>
__global__ void gather_kernel(T *y, const T *x, const int32_t *pair_of, int64_t n, int k,
                              int64_t width) {
    int64_t first = (int64_t)blockIdx.x * GATHERED;
    const T *from[GATHERED];

    ml_grid_release();
    ml_grid_wait();
#pragma unroll
    for (int r = 0; r < GATHERED; r++)
        from[r] = first + r < n ? x + (int64_t)(pair_of[first + r] / k) * width : NULL;
    for (int64_t i = (int64_t)threadIdx.x * V; i < width; i += THREADS * V) {
        ml_pack<T, V> p[GATHERED];
#pragma unroll
        for (int r = 0; r < GATHERED; r++)
            if (from[r])
                p[r] = *(const ml_pack<T, V> *)(from[r] + i);
#pragma unroll
        for (int r = 0; r < GATHERED; r++)
            if (from[r])
                *(ml_pack<T, V> *)(y + (first + r) * width + i) = p[r];
    }
}

/* Sum over a token's ranks of weight times the slot's row; without weights they are 1.  A thread has V
 * numbers; the rows of RANKS ranks are loaded together. */
template <class T, int V>
__global__ void sum_ranks(T *x, const T *y, const int32_t *slot_of, const float *weight,
                          int k, int64_t width, bool add) {
    const int32_t *slot = slot_of + (int64_t)blockIdx.x * k;
    int64_t i = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V;
    T *to = x + blockIdx.x * width + i;
    float sum[V] = {};

    ml_grid_release();
    ml_grid_wait();
    if (i >= width)
        return;
    if (add)
        ml_load(sum, to);
    for (int first = 0; first < k; first += RANKS) {
        float v[RANKS][V];
#pragma unroll
        for (int r = 0; r < RANKS; r++)
            if (first + r < k)
                ml_load(v[r], y + slot[first + r] * width + i);
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            if (first + r >= k)
                break;
            float w = weight ? weight[(int64_t)blockIdx.x * k + first + r] : 1.0f;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] = fmaf(w, v[r][j], sum[j]);
        }
    }
    ml_store(to, sum);
}

static const int32_t *pairs_by_slot(const ml_op_args *a, const ml_tensor *group) {
    return (const int32_t *)group->data + a->attr->moe.n_expert + 1;
}

static const int32_t *slots_by_pair(const ml_op_args *a, const ml_tensor *group) {
    return pairs_by_slot(a, group) + (int64_t)a->rows->n_token * a->attr->moe.top_k;
}

template <class T> static void gather(ml_stream *s, const ml_op_args *a) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    int64_t width = a->out[0].shape[1];
    const int V = ml_wide<T>::n;

    if (n_pair)
        ml_cuda_launch(ml_cuda(s), "moe-gather",
                       width % V ? gather_kernel<T, 1> : gather_kernel<T, V>,
                       dim3(ml_cuda_blocks(n_pair, GATHERED)), THREADS, 0,
                       (T *)a->out[0].data, (const T *)a->in[0].data,
                       pairs_by_slot(a, &a->in[1]), n_pair, a->attr->moe.top_k, width);
}

void ml_cuda_moe_gather_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->in[0].dtype, gather<T>(s, a));
}

template <class T>
static void sum_rows(ml_stream *s, const ml_op_args *a, const ml_tensor *x,
                     const ml_tensor *y, const int32_t *slot_of, const float *weight,
                     bool add) {
    const bool wide = x->shape[1] % ml_wide<T>::n == 0;
    const int V = ml_wide<T>::n;
    dim3 grid((unsigned)a->rows->n_token,
              ml_cuda_blocks(x->shape[1], THREADS * (wide ? V : 1)));

    if (a->rows->n_token)
        ml_cuda_launch(ml_cuda(s), "moe-combine", wide ? sum_ranks<T, V> : sum_ranks<T, 1>,
                       grid, THREADS, 0, (T *)x->data, (const T *)y->data, slot_of, weight,
                       a->attr->moe.top_k, x->shape[1], add);
}

void ml_cuda_moe_gather_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ML_CUDA_TYPED(a->din[0].dtype,
                      sum_rows<T>(s, a, &a->din[0], &a->dout[0],
                                  slots_by_pair(a, &a->in[1]), NULL, a->din_add[0]));
}

void ml_cuda_moe_combine_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype,
                  sum_rows<T>(s, a, &a->out[0], &a->in[0], slots_by_pair(a, &a->in[2]),
                              (const float *)a->in[1].data, false));
}

/* Backward of MOE_COMBINE, whose gradient has a row for each token, and of MOE_WEIGH, whose
 * gradient has one for each slot; a warp per pair, V numbers per access. */
template <class T> struct weigh_call {
    T *y; /* of the pair's slot: weight times x, or the gradient of that */
    float *dweight;
    const T *from, *x;
    const float *weight; /* NULL: 1 */
    const int32_t *slot_of;
    int k; /* `from` has a row for every k pairs; 0: one for each slot */
    int64_t width;
    bool add_y, add_w;
};

template <class T, int V>
__global__ void __launch_bounds__(THREADS) weigh_kernel(weigh_call<T> c, int64_t n_pair) {
    int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, slot;
    const T *from;
    float dot = 0.0f, weight;

    if (pair >= n_pair)
        return;
    slot = c.slot_of[pair];
    from = c.from + (c.k ? pair / c.k : slot) * c.width;
    weight = c.weight ? c.weight[pair] : 1.0f;
    for (int64_t i = (int64_t)(threadIdx.x % 32) * V; i < c.width; i += 32 * V) {
        T *to = c.y + slot * c.width + i;
        float d[V], x[V], y[V] = {};
        ml_load(d, from + i);
        if (c.dweight)
            ml_load(x, c.x + slot * c.width + i);
        if (c.y && c.add_y)
            ml_load(y, to);
#pragma unroll
        for (int j = 0; j < V; j++) {
            dot = c.dweight ? fmaf(d[j], x[j], dot) : 0.0f;
            y[j] = fmaf(weight, d[j], y[j]);
        }
        if (c.y)
            ml_store(to, y);
    }
    if (!c.dweight)
        return;
    dot = ml_warp_sum(dot);
    if (threadIdx.x % 32 == 0)
        c.dweight[pair] = c.add_w ? c.dweight[pair] + dot : dot;
}

template <class T>
static void weigh_run(ml_stream *s, const ml_op_args *a, const weigh_call<T> &c) {
    int64_t n_pair = (int64_t)a->rows->n_token * a->attr->moe.top_k;
    const int V = ml_wide<T>::n;

    if (n_pair)
        (c.width % V ? weigh_kernel<T, 1>
                     : weigh_kernel<T, V>)<<<ml_cuda_blocks(n_pair, WARPS), THREADS, 0,
                                             ml_cuda(s)->stream>>>(c, n_pair);
    ml_cuda_launched(ml_cuda(s), "weights of experts");
}

template <class T> static void weigh_backward(ml_stream *s, const ml_op_args *a, int k) {
    weigh_call<T> c = {};

    c.y = (T *)a->din[0].data;
    c.dweight = (float *)a->din[1].data;
    c.from = (const T *)a->dout[0].data;
    c.x = (const T *)a->in[0].data;
    c.weight = (const float *)a->in[1].data;
    c.slot_of = slots_by_pair(a, &a->in[2]);
    c.k = k;
    c.width = a->dout[0].shape[1];
    c.add_y = a->din_add[0];
    c.add_w = a->din_add[1];
    weigh_run(s, a, c);
}

void ml_cuda_moe_combine_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, weigh_backward<T>(s, a, a->attr->moe.top_k));
}

template <class T> static void weigh_forward(ml_stream *s, const ml_op_args *a) {
    weigh_call<T> c = {};

    c.y = (T *)a->out[0].data;
    c.from = (const T *)a->in[0].data;
    c.weight = (const float *)a->in[1].data;
    c.slot_of = slots_by_pair(a, &a->in[2]);
    c.width = a->out[0].shape[1];
    weigh_run(s, a, c);
}

void ml_cuda_moe_weigh_forward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->out[0].dtype, weigh_forward<T>(s, a));
}

void ml_cuda_moe_weigh_backward(ml_stream *s, const ml_op_args *a) {
    ML_CUDA_TYPED(a->dout[0].dtype, weigh_backward<T>(s, a, 0));
}
