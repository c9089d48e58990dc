/* sample.cu - sampling on the device.
 *
 * The device makes greedy draws, those with a temperature and those with filters.  The
 * CPU's sampler makes, from the same logits, draws that change logits (penalties, bias,
 * bans), want more than one token's log-probability, or want that of the filtered
 * distribution.  The device still computes their log-probability where it is the
 * model's, so that it has the LM head's bits. */
#include "backend/cuda/sample/sample.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/philox.h"
}

enum {
    BATCH = ML_DRAW_BATCH,
    TILE = 128,
    TILES = ML_SPLIT / TILE,
    WARPS = ML_SPLIT_THREADS / 32
};

struct answer {
    int32_t id;
    float logprob, entropy;
};

/* Draws in flight, in mapped host memory that kernels read and write: one trip each
 * way, and no copies. */
struct stage {
    ml_device_draw draws[BATCH];
    answer answers[BATCH];
    bool kept[BATCH]; /* the CPU's results are final */
};

/* At most two steps have draws in flight: one may begin before the other is waited for. */
struct ml_sample_stage {
    stage stages[2];
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

__global__ static void __launch_bounds__(ML_SPLIT_THREADS)
    split_kernel(part *out, const ml_device_draw *draws, int64_t n_vocab) {
    __shared__ float smem[WARPS];
    __shared__ int32_t id_smem[WARPS];
    ml_device_draw a = draws[blockIdx.y];
    int64_t first = (int64_t)blockIdx.x * ML_SPLIT, left = n_vocab - first;
    int64_t n = left < ML_SPLIT ? left : ML_SPLIT;
    part p = {};

    p.report = p.drawn = ml_split_stat(a.logits + first, n, a.report, smem);
    if (a.given < 0 && a.temperature > 0.0f && a.temperature != a.report)
        p.drawn = ml_split_stat(a.logits + first, n, a.temperature, smem);
    if (a.given < 0)
        largest(p, a.logits + first, n, (int32_t)first, smem, id_smem);
    if (threadIdx.x == 0)
        out[blockIdx.y * gridDim.x + blockIdx.x] = p;
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

/* The split that a draw falls into, and the target of the running sum in it. */
__device__ static int choose_split(const part *p, int splits, double u, double *target) {
    double mass[ML_SPLITS], total = 0.0, sum = 0.0;
    float m = -INFINITY;
    int last = 0;

    for (int i = 0; i < splits; i++)
        m = ml_max(m, p[i].drawn.m);
    for (int i = 0; i < splits; i++) {
        double x = (double)p[i].drawn.l * (double)ml_exp(p[i].drawn.m - m);
        mass[i] = x > 0.0 ? x : 0.0;
        total += mass[i];
    }
    for (int i = 0; i < splits; i++) {
        if (mass[i] > 0.0) {
            last = i;
            *target = (u * total - sum) / (double)ml_exp(p[i].drawn.m - m);
        }
        if (sum + mass[i] > u * total)
            return i;
        sum += mass[i];
    }
    return last;
}

__global__ static void __launch_bounds__(ML_SPLIT_THREADS)
    sample_kernel(answer *out, int32_t *drawn, const ml_device_draw *draws,
                  const int32_t *chosen, const part *parts, int splits, int64_t n_vocab) {
    __shared__ ml_row_stat report[ML_SPLITS];
    __shared__ double target;
    __shared__ int split;
    const part *p = parts + (int64_t)blockIdx.x * splits;
    ml_device_draw a = draws[blockIdx.x];
    int32_t id = a.filtered ? chosen[blockIdx.x] : a.given;

    if (threadIdx.x < splits)
        report[threadIdx.x] = p[threadIdx.x].report;
    if (threadIdx.x == 0 && id < 0 && a.temperature > 0.0f)
        split = choose_split(p, splits, a.u, &target);
    __syncthreads();
    if (id < 0 && a.temperature > 0.0f) {
        int64_t first = (int64_t)split * ML_SPLIT, left = n_vocab - first;
        id = draw(a.logits + first, left < ML_SPLIT ? left : ML_SPLIT, a.temperature,
                  p[split].drawn.m, target);
        id = id < 0 ? id : (int32_t)first + id;
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
    answer o = { id, ml_row_logprob(r, a.logits[id], a.report), ml_row_entropy(r) };
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
    for (int i = 0; s->sample && i < 2; i++)
        if (s->sample->done[i])
            cudaEventDestroy(s->sample->done[i]);
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
    part *parts = (part *)scratch;
    int32_t *chosen = (int32_t *)(parts + (int64_t)BATCH * ml_splits(n_vocab));
    int splits = ml_splits(n_vocab);
    bool filtered = false;

    for (int i = 0; i < n; i++) {
        bool here = is_here(&draw[i]);
        if (!here)
            sample_elsewhere(s, &draw[i], n_vocab);
        g->draws[i] = device_draw_of(&draw[i], here, n_vocab);
        g->kept[i] = !here && draw[i].opts->dist == ML_DIST_DRAWN;
        filtered = filtered || g->draws[i].filtered;
    }
    split_kernel<<<dim3((unsigned)splits, (unsigned)n), ML_SPLIT_THREADS, 0, s->stream>>>(
        parts, g->draws, n_vocab);
    if (filtered)
        ml_filter_draws(s, chosen, g->draws, n, n_vocab);
    sample_kernel<<<(unsigned)n, ML_SPLIT_THREADS, 0, s->stream>>>(
        g->answers, drawn, g->draws, chosen, parts, splits, n_vocab);
    ml_cuda_launched(s, "drawing");
    ml_cuda_note(s, cudaEventRecord(s->sample->done[turn], s->stream), "drawing");
}

static void end_batch(ml_cuda_stream *s, unsigned turn, ml_draw *draw, int n) {
    const stage *g = &s->sample->stages[turn];

    ml_cuda_note(s, cudaEventSynchronize(s->sample->done[turn]), "drawing");
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
