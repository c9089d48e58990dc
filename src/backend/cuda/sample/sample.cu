/* sample.cu - sampling on the device.
 *
 * The device makes greedy draws, those with a temperature and those with filters.  The
 * CPU's sampler makes, from the same logits, draws that change logits (penalties, bias,
 * bans), want more than one token's log-probability, or want that of the filtered
 * distribution.  The device still computes their log-probability where it is the
 * model's, so that it has the LM head's bits.
 *
 * Sampling supports are a bit of each token: the filter writes them, or the host for draws
 * that it made.  The device computes the log-probability over them, with the LM head's bits,
 * and the host writes their short form (backend/support.h). */
#include "backend/cuda/sample/sample.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "backend/support.h"
#include "base/philox.h"
}

enum {
    BATCH = ML_DRAW_BATCH,
    TILE = 128,
    TILES = ML_SPLIT / TILE,
    WARPS = ML_SPLIT_THREADS / 32,
    /* From MANY_DRAWS on a block has MANY_EACH splits: fewer loads from host memory. */
    MANY_DRAWS = 64,
    MANY_EACH = 4
};

struct answer {
    int32_t id;
    float logprob, entropy;
    float over; /* the log-probability over the support */
};

/* Draws in flight, in mapped host memory that kernels read and write: one trip each
 * way, and no copies. */
struct stage {
    ml_device_draw draws[BATCH];
    answer answers[BATCH];
    bool kept[BATCH]; /* the CPU's results are final */
    int64_t n_vocab;
};

/* Bits of the supports of draws in flight. */
struct over_bits {
    uint32_t *device, *host; /* [room of rows][words]; host: pinned */
    ml_row_stat *part;       /* [room of rows][splits] */
    int64_t room;            /* rows */
    int64_t n_vocab;
};

/* At most two steps have draws in flight: one may begin before the other is waited for. */
struct ml_sample_stage {
    stage stages[2];
    over_bits over[2];
    cudaEvent_t done[2];
    unsigned begun, ended;
};

/* The result of one split of a row. */
struct part {
    ml_row_stat report, drawn;
    float z; /* the largest logit, and its token */
    int32_t id;
};
static_assert(sizeof(part) == ML_DRAW_SPLIT_BYTES, "cuda_ops.h has its size");

/* ---- kernels ---- */

/* The larger logit; of equal ones, that of the lower id. */
__device__ static void larger(float &z, int32_t &id, float other, int32_t other_id) {
    if (other > z || (other == z && other_id < id)) {
        z = other;
        id = other_id;
    }
}

/* Argmax of n columns from z on; the first is column `first`.  NaN is less than any. */
__device__ static void largest(part &p, const float *z, int64_t n, int32_t first,
                               float *smem, int32_t *id_smem) {
    p.z = -INFINITY;
    p.id = INT32_MAX;
    for (int64_t i = threadIdx.x; i < n; i += ML_SPLIT_THREADS)
        larger(p.z, p.id, z[i] == z[i] ? z[i] : -INFINITY, first + (int32_t)i);
    for (int w = 16; w; w >>= 1)
        larger(p.z, p.id, __shfl_xor_sync(0xffffffffu, p.z, w),
               __shfl_xor_sync(0xffffffffu, p.id, w));
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        smem[threadIdx.x / 32] = p.z;
        id_smem[threadIdx.x / 32] = p.id;
    }
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        larger(p.z, p.id, smem[i], id_smem[i]);
}

/* A draw's parameters, which are in host memory: a block loads them once. */
__device__ static ml_device_draw load_draw(const ml_device_draw *from) {
    static_assert(sizeof(ml_device_draw) % 4 == 0 && sizeof(ml_device_draw) <= 128,
                  "a warp loads it");
    __shared__ union {
        uint32_t word[sizeof(ml_device_draw) / 4];
        ml_device_draw draw;
    } to;

    if (threadIdx.x < sizeof(ml_device_draw) / 4)
        to.word[threadIdx.x] = ((const uint32_t *)from)[threadIdx.x];
    __syncthreads();
    return to.draw;
}

__device__ static part part_of(const ml_device_draw &a, int64_t first, int64_t n_vocab,
                               float *smem, int32_t *id_smem) {
    int64_t left = n_vocab - first, n = left < ML_SPLIT ? left : ML_SPLIT;
    part p = {};

    p.report = p.drawn = ml_split_stat(a.logits + first, n, a.report, smem);
    if (a.given < 0 && a.temperature > 0.0f && a.temperature != a.report)
        p.drawn = ml_split_stat(a.logits + first, n, a.temperature, smem);
    if (a.given < 0 && !(a.temperature > 0.0f))
        largest(p, a.logits + first, n, (int32_t)first, smem, id_smem);
    return p;
}

/* A block has `each` of a draw's splits. */
__global__ static void __launch_bounds__(ML_SPLIT_THREADS, 4)
    split_kernel(part *out, const ml_device_draw *draws, int splits, int each,
                 int64_t n_vocab) {
    __shared__ float smem[WARPS];
    __shared__ int32_t id_smem[WARPS];
    ml_device_draw a = load_draw(draws + blockIdx.y);
    int first = (int)blockIdx.x * each;

    ml_grid_release();
    for (int i = first; i < first + each && i < splits; i++) {
        part p = part_of(a, (int64_t)i * ML_SPLIT, n_vocab, smem, id_smem);
        if (threadIdx.x == 0)
            out[(int64_t)blockIdx.y * splits + i] = p;
    }
}

/* A lane's four weights of a tile. */
__device__ static void weigh(float (&w)[4], const float *z, int64_t n, int64_t first,
                             float t, float m) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float p = first + k < n ? ml_exp(ml_scaled(z[first + k], t) - m) : 0.0f;
        w[k] = p > 0.0f ? p : 0.0f; /* NaN: weight 0 */
    }
}

/* Exclusive prefix sum over a warp, and the sum of all lanes. */
__device__ static double scan(double x, double *total) {
    int lane = (int)threadIdx.x % 32;
    double sum = x;
    for (int w = 1; w < 32; w <<= 1) {
        double below = __shfl_up_sync(0xffffffffu, sum, w);
        if (lane >= w)
            sum += below;
    }
    *total = __shfl_sync(0xffffffffu, sum, 31);
    return sum - x;
}

/* Index of the number at which the running sum exceeds `target`, by one warp; *before
 * is the sum before it.  Each lane has consecutive numbers.  If there is none: the last
 * that is not 0; -1 if all are 0. */
__device__ static int passed(const float *mass, int n, double target, double *before) {
    int lane = (int)threadIdx.x % 32, per = (n + 31) / 32;
    int first = lane * per, end = first + per < n ? first + per : n, at = -1, last = -1;
    double own = 0.0, total, sum;
    unsigned hit;

    for (int i = first; i < end; i++)
        own += (double)mass[i];
    sum = scan(own, &total);
    for (int i = first; i < end && at < 0; i++) {
        if (mass[i] > 0.0f)
            last = i;
        if (sum + (double)mass[i] > target)
            at = i;
        else
            sum += (double)mass[i];
    }
    hit = __ballot_sync(0xffffffffu, at >= 0);
    if (hit == 0) {
        hit = __ballot_sync(0xffffffffu, last >= 0);
        if (hit == 0)
            return -1;
        lane = 31 - __clz((int)hit);
        at = last;
        sum = 0.0;
    } else {
        lane = __ffs((int)hit) - 1;
    }
    *before = __shfl_sync(0xffffffffu, sum, lane);
    return __shfl_sync(0xffffffffu, at, lane);
}

/* Inverse-CDF draw of one of the n columns of a split; -1: all weights are 0.  The
 * running sum of weights, relative to the split's largest, must exceed `target`. */
__device__ static int32_t draw(const float *z, int64_t n, float t, float m, double target) {
    __shared__ float mass[TILES], weight[TILE];
    __shared__ int32_t chosen;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int tiles = (int)((n + TILE - 1) / TILE);
    float w[4];

    for (int tile = warp; tile < tiles; tile += WARPS) {
        float sum;
        weigh(w, z, n, (int64_t)tile * TILE + lane * 4, t, m);
        sum = ml_warp_sum((w[0] + w[1]) + (w[2] + w[3]));
        if (lane == 0)
            mass[tile] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        double before = 0.0, unused;
        int tile = passed(mass, tiles, target, &before), at = -1;
        if (tile >= 0) {
            weigh(w, z, n, (int64_t)tile * TILE + lane * 4, t, m);
            for (int k = 0; k < 4; k++)
                weight[lane * 4 + k] = w[k];
            __syncwarp();
            at = passed(weight, TILE, target - before, &unused);
        }
        if (lane == 0)
            chosen = at < 0 ? -1 : tile * TILE + at;
    }
    __syncthreads();
    return chosen;
}

/* The splits of a row in shared memory: statistics of what is drawn from, and their weights, which are those
 * of their largest logits (`top`) times sums. */
struct split_weights {
    float m[ML_SPLITS], top[ML_SPLITS];
    double mass[ML_SPLITS];
};

/* Thread i has split i. */
__device__ static void weigh_splits(split_weights &w, const part *p, int splits) {
    int i = (int)threadIdx.x;
    float m = -INFINITY, l = i < splits ? p[i].drawn.l : 0.0f;

    if (i < splits)
        w.m[i] = p[i].drawn.m;
    __syncthreads();
    if (i >= splits)
        return;
    for (int k = 0; k < splits; k++)
        m = ml_max(m, w.m[k]);
    w.top[i] = ml_exp(w.m[i] - m);
    double x = (double)l * (double)w.top[i];
    w.mass[i] = x > 0.0 ? x : 0.0;
}

/* The split that a draw falls into, and the target of the running sum in it. */
__device__ static int choose_split(const split_weights &w, int splits, double u,
                                   double *target) {
    double total = 0.0, sum = 0.0;
    int last = 0;

    for (int i = 0; i < splits; i++)
        total += w.mass[i];
    for (int i = 0; i < splits; i++) {
        if (w.mass[i] > 0.0) {
            last = i;
            *target = (u * total - sum) / (double)w.top[i];
        }
        if (sum + w.mass[i] > u * total)
            return i;
        sum += w.mass[i];
    }
    return last;
}

__global__ static void __launch_bounds__(ML_SPLIT_THREADS)
    sample_kernel(answer *out, int32_t *drawn, const ml_device_draw *draws,
                  const int32_t *chosen, const part *parts, int splits, int64_t n_vocab) {
    __shared__ ml_row_stat report[ML_SPLITS];
    __shared__ split_weights weights;
    __shared__ double target;
    __shared__ int split;
    __shared__ float smem[WARPS];
    __shared__ int32_t id_smem[WARPS];
    const part *p = parts + (int64_t)blockIdx.x * splits;
    ml_device_draw a = load_draw(draws + blockIdx.x);
    int32_t id;

    ml_grid_wait();
    id = a.filtered ? chosen[blockIdx.x] : a.given;
    if (threadIdx.x < splits)
        report[threadIdx.x] = p[threadIdx.x].report;
    weigh_splits(weights, p, splits);
    __syncthreads();
    if (threadIdx.x == 0 && id < 0 && a.temperature > 0.0f)
        split = choose_split(weights, splits, a.u, &target);
    __syncthreads();
    if (id < 0 && a.temperature > 0.0f) {
        int64_t first = (int64_t)split * ML_SPLIT, left = n_vocab - first;
        id = draw(a.logits + first, left < ML_SPLIT ? left : ML_SPLIT, a.temperature,
                  p[split].drawn.m, target);
        id = id < 0 ? id : (int32_t)first + id;
    }
    if (id < 0 && a.temperature > 0.0f) { /* all weights are 0 */
        part all;
        largest(all, a.logits, n_vocab, 0, smem, id_smem);
        id = all.id;
    }
    if (threadIdx.x)
        return;
    if (id < 0) {
        float z = -INFINITY;
        id = INT32_MAX;
        for (int i = 0; i < splits; i++)
            larger(z, id, p[i].z, p[i].id);
    }
    ml_row_stat r = ml_row_merge(report, splits);
    answer o = { id, ml_row_logprob(r, a.logits[id], a.report), ml_row_entropy(r), 0.0f };
    out[blockIdx.x] = o;
    if (drawn)
        drawn[blockIdx.x] = id;
}

/* ---- draws on the CPU ---- */

static bool is_changed(const ml_draw *d) {
    const ml_draw_opts *o = d->opts;
    return o->repetition != 1.0f || o->frequency != 0.0f || o->presence != 0.0f ||
           o->n_bias || d->n_ban || d->allowed;
}

static bool is_filtered(const ml_draw_opts *o) {
    return o->temperature > 0.0f && (o->top_k > 0 || o->top_p < 1.0f || o->min_p > 0.0f);
}

/* Can the device make this draw? */
static bool is_here(const ml_draw *d) {
    bool model = !is_changed(d) && !is_filtered(d->opts); /* the model's distribution */

    if (d->n_top || d->n_also)
        return false;
    return model || (d->opts->dist != ML_DIST_DRAWN && (d->given >= 0 || !is_changed(d)));
}

/* Makes one draw on the CPU from a copy of its logits.  It allocates memory outside the
 * step's: a few such draws are rare, and many are slow anyway. */
static void sample_elsewhere(ml_cuda_stream *s, ml_draw *d, int64_t n_vocab) {
    const ml_backend *cpu = &s->host.cpu;
    size_t row = ml_cuda_align((size_t)n_vocab * sizeof(float));
    char *buffer = (char *)aligned_alloc(
        256, row + ml_cuda_align(cpu->ops->sample_scratch(cpu->stream, n_vocab)));
    const float *there = d->logits;

    if (!buffer) {
        ml_cuda_note(s, cudaErrorMemoryAllocation, "drawing on the CPU");
        return;
    }
    ml_cuda_note(s,
                 cudaMemcpyAsync(buffer, there, (size_t)n_vocab * sizeof(float),
                                 cudaMemcpyDeviceToHost, s->stream),
                 "drawing on the CPU");
    ml_cuda_note(s, cudaStreamSynchronize(s->stream), "drawing on the CPU");
    d->logits = (const float *)buffer;
    cpu->ops->sample(cpu->stream, d, 1, n_vocab, buffer + row, NULL);
    d->logits = there;
    free(buffer);
}

/* ---- log-probabilities over supports ---- */

/* The temperature of a draw, as training divides by it. */
__device__ static float over_temperature(const ml_device_draw &a) {
    return a.temperature > 0.0f ? a.temperature : 1.0f;
}

__global__ static void __launch_bounds__(ML_SPLIT_THREADS)
    over_split_kernel(ml_row_stat *out, const ml_device_draw *draws, int64_t n_vocab) {
    __shared__ float smem[WARPS];
    ml_device_draw a = load_draw(draws + blockIdx.y);
    int64_t first = (int64_t)blockIdx.x * ML_SPLIT, left = n_vocab - first;
    ml_row_stat r;

    if (!a.bits)
        return;
    r = ml_split_over(a.logits + first, a.bits + first / 32,
                      left < ML_SPLIT ? left : ML_SPLIT, over_temperature(a), smem);
    if (threadIdx.x == 0)
        out[blockIdx.y * gridDim.x + blockIdx.x] = r;
}

__global__ static void over_kernel(answer *out, const ml_device_draw *draws,
                                   const ml_row_stat *part, int splits, int n) {
    int i = (int)(blockIdx.x * 32 + threadIdx.x);
    ml_device_draw a;

    if (i >= n || !draws[i].bits)
        return;
    a = draws[i];
    out[i].over = ml_row_logprob(ml_row_merge(part + (int64_t)i * splits, splits),
                                 a.logits[out[i].id], over_temperature(a));
}

static void free_bits(over_bits *b) {
    cudaFree(b->device);
    cudaFree(b->part);
    cudaFreeHost(b->host);
    memset(b, 0, sizeof *b);
}

/* Memory for the bits of n draws. */
static bool take_bits(ml_cuda_stream *s, over_bits *b, int64_t n, int64_t n_vocab) {
    size_t words = (size_t)(n * ml_cuda_support_words(n_vocab));
    cudaError_t e;

    if (n <= b->room && n_vocab == b->n_vocab)
        return true;
    free_bits(b);
    e = cudaMalloc((void **)&b->device, words * sizeof(uint32_t));
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&b->part,
                       (size_t)(n * ml_splits(n_vocab)) * sizeof *b->part);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&b->host, words * sizeof(uint32_t),
                          cudaHostAllocDefault);
    if (e != cudaSuccess) {
        free_bits(b);
        ml_cuda_note(s, e, "sampling supports");
        return false;
    }
    b->room = n;
    b->n_vocab = n_vocab;
    return true;
}

static bool wants_support(const ml_draw *d) {
    return d->support && d->given < 0;
}

static bool any_support(const ml_draw *draw, int n) {
    for (int i = 0; i < n; i++)
        if (wants_support(&draw[i]))
            return true;
    return false;
}

/* The bits of a draw that the device does not filter: those of the CPU's support, or all. */
static void send_bits(ml_cuda_stream *s, const over_bits *b, int i, const ml_draw *d,
                      bool here) {
    int64_t words = ml_cuda_support_words(b->n_vocab);
    uint32_t *to = b->host + i * words;
    ml_str support = { (const char *)d->support, here ? 0 : (size_t)d->n_support };
    ml_support_reader r = ml_support_read(support);

    ml_support_next(&r, to, b->n_vocab);
    ml_cuda_note(s,
                 cudaMemcpyAsync(b->device + i * words, to,
                                 (size_t)words * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                 s->stream),
                 "sampling supports");
}

/* After the draws. */
static void over_supports(ml_cuda_stream *s, stage *g, const over_bits *b, int n) {
    int splits = ml_splits(b->n_vocab);
    int64_t words = ml_cuda_support_words(b->n_vocab);

    over_split_kernel<<<dim3((unsigned)splits, (unsigned)n), ML_SPLIT_THREADS, 0,
                        s->stream>>>(b->part, g->draws, b->n_vocab);
    over_kernel<<<ml_cuda_blocks(n, 32), 32, 0, s->stream>>>(g->answers, g->draws, b->part,
                                                             splits, n);
    ml_cuda_launched(s, "log-probabilities over supports");
    for (int i = 0; i < n; i++)
        if (g->draws[i].bits && g->draws[i].filtered)
            ml_cuda_note(s,
                         cudaMemcpyAsync(b->host + i * words, b->device + i * words,
                                         (size_t)words * sizeof(uint32_t),
                                         cudaMemcpyDeviceToHost, s->stream),
                         "sampling supports");
}

/* Writes the support of a draw that the device has filtered; ids: [n_vocab]. */
static void write_support(ml_draw *d, const uint32_t *bits, int64_t n_vocab, int32_t *ids) {
    int64_t n = 0;

    for (int64_t w = 0; w < ml_cuda_support_words(n_vocab); w++)
        for (uint32_t left = bits[w]; left; left &= left - 1)
            ids[n++] = (int32_t)(w * 32 + __builtin_ctz(left));
    d->n_support = n ? (int32_t)ml_support_write(d->support, ids, n, n_vocab) : 0;
}

static void end_supports(ml_cuda_stream *s, const stage *g, const over_bits *b,
                         ml_draw *draw, int n) {
    int64_t words = ml_cuda_support_words(g->n_vocab);
    int32_t *ids = NULL;

    for (int i = 0; i < n; i++) {
        if (!g->draws[i].bits)
            continue;
        draw[i].support_logprob = g->answers[i].over;
        if (!g->draws[i].filtered) {
            draw[i].n_support = is_here(&draw[i]) ? 0 : draw[i].n_support;
            continue;
        }
        if (!ids)
            ids = (int32_t *)malloc((size_t)g->n_vocab * sizeof *ids);
        if (ids)
            write_support(&draw[i], b->host + i * words, g->n_vocab, ids);
        else
            ml_cuda_note(s, cudaErrorMemoryAllocation, "sampling supports");
    }
    free(ids);
}

/* ---- batches of draws ---- */

ml_status ml_cuda_sample_open(ml_cuda_stream *s, ml_err *err) {
    if (cudaHostAlloc((void **)&s->sample, sizeof *s->sample, cudaHostAllocMapped) !=
        cudaSuccess) {
        s->sample = NULL;
        return ml_fail(err, ML_ENOMEM, "out of memory for the GPU's sampler");
    }
    memset(s->sample, 0, sizeof *s->sample);
    for (int i = 0; i < 2; i++)
        ml_cuda_note(s,
                     cudaEventCreateWithFlags(&s->sample->done[i], cudaEventDisableTiming),
                     "opening the sampler");
    return ML_OK;
}

void ml_cuda_sample_close(ml_cuda_stream *s) {
    for (int i = 0; s->sample && i < 2; i++) {
        if (s->sample->done[i])
            cudaEventDestroy(s->sample->done[i]);
        free_bits(&s->sample->over[i]);
    }
    cudaFreeHost(s->sample);
    s->sample = NULL;
}

static ml_device_draw device_draw_of(const ml_draw *d, bool here, int64_t n_vocab) {
    const ml_draw_opts *o = d->opts;
    float t = o->temperature;
    ml_device_draw a = {};

    a.logits = d->logits;
    a.temperature = t;
    a.report = o->dist == ML_DIST_MODEL || t <= 0.0f ? 1.0f : t;
    a.given = here ? d->given : d->id;
    a.u = ml_philox_uniform(o->seed, o->sample, (uint64_t)d->n_history);
    a.filtered = a.given < 0 && is_filtered(o);
    a.top_k = o->top_k > 0 ? (uint32_t)o->top_k : (uint32_t)n_vocab;
    a.top_p = o->top_p;
    a.near = o->min_p > 0.0f ? -logf(o->min_p) : INFINITY;
    return a;
}

static void begin_batch(ml_cuda_stream *s, ml_draw *draw, int n, int64_t n_vocab,
                        void *scratch, int32_t *drawn) {
    unsigned turn = s->sample->begun++ % 2;
    stage *g = &s->sample->stages[turn];
    over_bits *b = &s->sample->over[turn];
    bool over = any_support(draw, n) && take_bits(s, b, n, n_vocab);
    part *parts = (part *)scratch;
    int32_t *chosen = (int32_t *)(parts + (int64_t)BATCH * ml_splits(n_vocab));
    int splits = ml_splits(n_vocab), each = n < MANY_DRAWS ? 1 : MANY_EACH;
    bool filtered = false;

    for (int i = 0; i < n; i++) {
        bool here = is_here(&draw[i]);
        if (!here)
            sample_elsewhere(s, &draw[i], n_vocab);
        g->draws[i] = device_draw_of(&draw[i], here, n_vocab);
        g->kept[i] = !here && draw[i].opts->dist == ML_DIST_DRAWN;
        filtered = filtered || g->draws[i].filtered;
        if (over && wants_support(&draw[i])) {
            g->draws[i].bits = b->device + i * ml_cuda_support_words(n_vocab);
            if (!g->draws[i].filtered)
                send_bits(s, b, i, &draw[i], here);
        }
    }
    g->n_vocab = n_vocab;
    split_kernel<<<dim3(ml_cuda_blocks(splits, each), (unsigned)n), ML_SPLIT_THREADS, 0,
                   s->stream>>>(parts, g->draws, splits, each, n_vocab);
    if (filtered)
        ml_filter_draws(s, chosen, g->draws, n, n_vocab);
    ml_cuda_launched(s, "drawing");
    ml_cuda_launch(s, "drawing", sample_kernel, dim3((unsigned)n), ML_SPLIT_THREADS, 0,
                   g->answers, drawn, g->draws, chosen, parts, splits, n_vocab);
    if (over)
        over_supports(s, g, b, n);
    ml_cuda_note(s, cudaEventRecord(s->sample->done[turn], s->stream), "drawing");
}

static void end_batch(ml_cuda_stream *s, unsigned turn, ml_draw *draw, int n) {
    const stage *g = &s->sample->stages[turn];

    ml_cuda_note(s, cudaEventSynchronize(s->sample->done[turn]), "drawing");
    end_supports(s, g, &s->sample->over[turn], draw, n);
    for (int i = 0; i < n; i++) {
        if (g->kept[i])
            continue;
        draw[i].id = g->answers[i].id;
        draw[i].logprob = g->answers[i].logprob;
        draw[i].entropy = g->answers[i].entropy;
    }
}

/* Waits for all batches but the last, which ml_cuda_sampled waits for. */
void ml_cuda_sample(ml_stream *s, struct ml_draw *draw, int64_t n, int64_t n_vocab,
                    void *scratch, int32_t *drawn) {
    for (int64_t at = 0; at < n; at += BATCH) {
        int m = (int)(n - at < BATCH ? n - at : BATCH);
        begin_batch(ml_cuda(s), draw + at, m, n_vocab, scratch, drawn ? drawn + at : NULL);
        if (at + BATCH < n)
            end_batch(ml_cuda(s), --ml_cuda(s)->sample->begun % 2, draw + at, m);
    }
}

void ml_cuda_sampled(ml_stream *s, struct ml_draw *draw, int64_t n) {
    int64_t last = (n - 1) / BATCH * BATCH;

    if (n > 0)
        end_batch(ml_cuda(s), ml_cuda(s)->sample->ended++ % 2, draw + last,
                  (int)(n - last));
}
