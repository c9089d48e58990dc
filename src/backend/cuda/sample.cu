/* sample.cu - drawing tokens on the device.
 *
 * Plain draws (greedy, or with a temperature) never leave it: a block has a row of logits.  Draws
 * that change or filter logits, or want more than one token's log-probability, are made by the
 * CPU's sampler from the same logits; their log-probability is still the device's where it is the
 * model's, so that it has the LM head's bits. */
#include "backend/cuda/lmhead.cuh"

#include <stdlib.h>

extern "C" {
#include "base/philox.h"
}

enum { BATCH = 4096, TILE = 128, MAX_TILES = 4096, WARPS = ML_ROW_THREADS / 32 };

struct ask {
    const float *logits;
    double u;
    float temperature; /* drawn with; 0: the largest */
    float report;      /* temperature of the log-probability */
    int32_t given;     /* or -1: draw */
};

struct answer {
    int32_t id;
    float logprob, entropy;
};

/* ---- kernels ---- */

/* The larger logit, of equal ones the lower id; NaN is less than any. */
__device__ static void larger(float &z, int32_t &id, float other, int32_t other_id) {
    if (other > z || (other == z && other_id < id)) {
        z = other;
        id = other_id;
    }
}

__device__ static int32_t largest(const float *z, int64_t n, float *room,
                                  int32_t *id_room) {
    float best = -INFINITY;
    int32_t id = INT32_MAX;

    for (int64_t i = threadIdx.x; i < n; i += ML_ROW_THREADS)
        larger(best, id, z[i] == z[i] ? z[i] : -INFINITY, (int32_t)i);
    for (int w = 16; w; w >>= 1)
        larger(best, id, __shfl_xor_sync(0xffffffffu, best, w),
               __shfl_xor_sync(0xffffffffu, id, w));
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        room[threadIdx.x / 32] = best;
        id_room[threadIdx.x / 32] = id;
    }
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        larger(best, id, room[i], id_room[i]);
    return id;
}

/* A lane's four weights of a tile. */
__device__ static void weigh(float (&w)[4], const float *z, int64_t n, int64_t first,
                             float t, float m) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float p = first + k < n ? ml_exp(z[first + k] / t - m) : 0.0f;
        w[k] = p > 0.0f ? p : 0.0f; /* NaN weighs nothing */
    }
}

/* Sums of the lanes below, and of all. */
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

/* Which of n numbers the running sum passes `target` in, by one warp; `before` is the sum up to
 * there.  Each lane has a run of neighbours.  The last that weighs anything where none does. */
__device__ static int passed(const float *mass, int n, double u, double *target,
                             double *before) {
    int lane = (int)threadIdx.x % 32, per = (n + 31) / 32;
    int first = lane * per, end = first + per < n ? first + per : n, at = -1, last = -1;
    double own = 0.0, total, sum;
    unsigned hit;

    for (int i = first; i < end; i++)
        own += (double)mass[i];
    sum = scan(own, &total);
    if (u >= 0.0)
        *target = u * total;
    for (int i = first; i < end && at < 0; i++) {
        if (mass[i] > 0.0f)
            last = i;
        if (sum + (double)mass[i] > *target)
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

/* The token drawn, or -1: nothing weighs anything.  Tiles of 128 columns at absolute positions. */
__device__ static int32_t draw(const float *z, int64_t n, float t, float m, double u,
                               float *mass) {
    __shared__ float weight[TILE];
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
        double target = 0.0, before = 0.0, unused;
        int tile = passed(mass, tiles, u, &target, &before), at = -1;
        if (tile >= 0) {
            weigh(w, z, n, (int64_t)tile * TILE + lane * 4, t, m);
            for (int k = 0; k < 4; k++)
                weight[lane * 4 + k] = w[k];
            __syncwarp();
            target -= before;
            at = passed(weight, TILE, -1.0, &target, &unused);
        }
        if (lane == 0)
            chosen = at < 0 ? -1 : tile * TILE + at;
    }
    __syncthreads();
    return chosen;
}

__global__ static void __launch_bounds__(ML_ROW_THREADS)
    sample_kernel(answer *out, const ask *asks, int64_t n) {
    __shared__ float room[WARPS], mass[MAX_TILES];
    __shared__ int32_t id_room[WARPS];
    ask a = asks[blockIdx.x];
    ml_row_stat r = ml_row_stat_of(a.logits, n, a.report, room);
    int32_t id = a.given;

    if (id < 0 && a.temperature > 0.0f) {
        float m = r.m;
        if (a.temperature != a.report)
            m = ml_row_stat_of(a.logits, n, a.temperature, room).m;
        id = draw(a.logits, n, a.temperature, m, a.u, mass);
    }
    if (id < 0)
        id = largest(a.logits, n, room, id_room);
    if (threadIdx.x == 0) {
        answer o = { id, ml_row_logprob(r, a.logits[id], a.report), ml_row_entropy(r) };
        out[blockIdx.x] = o;
    }
}

/* ---- what the CPU draws ---- */

static bool is_plain(const ml_draw *d) {
    const ml_draw_opts *o = d->opts;
    bool changed = o->repetition != 1.0f || o->frequency != 0.0f || o->presence != 0.0f ||
                   o->n_bias || d->n_ban;
    bool filtered =
        o->temperature > 0.0f && (o->top_k > 0 || o->top_p < 1.0f || o->min_p > 0.0f);

    if (d->n_top || d->n_also)
        return false;
    if (d->given >= 0)
        return o->dist != ML_DIST_DRAWN || (!changed && !filtered);
    return !changed && !filtered;
}

/* Draws one by one, their logits copied out.  Memory for it is not the step's: a few of them are
 * rare, and many are slow anyway. */
static void sample_elsewhere(ml_cuda_stream *s, ml_draw *d, int64_t n_vocab) {
    const ml_backend *cpu = &s->host.cpu;
    size_t row = ml_cuda_align((size_t)n_vocab * sizeof(float));
    char *room = (char *)aligned_alloc(
        256, row + ml_cuda_align(cpu->ops->sample_scratch(cpu->stream, n_vocab)));
    const float *there = d->logits;

    if (!room) {
        ml_cuda_note(s, cudaErrorMemoryAllocation, "drawing on the CPU");
        return;
    }
    ml_cuda_note(s,
                 cudaMemcpyAsync(room, there, (size_t)n_vocab * sizeof(float),
                                 cudaMemcpyDeviceToHost, s->stream),
                 "drawing on the CPU");
    ml_cuda_note(s, cudaStreamSynchronize(s->stream), "drawing on the CPU");
    d->logits = (const float *)room;
    cpu->ops->sample(cpu->stream, d, 1, n_vocab, room + row);
    d->logits = there;
    free(room);
}

/* ---- all of it ---- */

size_t ml_cuda_sample_scratch(const ml_stream *s, int64_t n_vocab) {
    (void)s;
    (void)n_vocab;
    return BATCH * (sizeof(ask) + sizeof(answer));
}

static ask ask_of(const ml_draw *d, bool plain) {
    float t = d->opts->temperature;
    ask a;

    a.logits = d->logits;
    a.temperature = t;
    a.report = d->opts->dist == ML_DIST_MODEL || t <= 0.0f ? 1.0f : t;
    a.given = plain ? d->given : d->id;
    a.u = ml_philox_uniform(d->opts->seed, d->opts->sample, (uint64_t)d->n_history);
    return a;
}

static void sample_batch(ml_cuda_stream *s, ml_draw *draw, int n, int64_t n_vocab,
                         void *scratch, ask *asks, answer *answers) {
    ask *there = (ask *)scratch;
    answer *out = (answer *)(there + BATCH);

    for (int i = 0; i < n; i++) {
        bool plain = is_plain(&draw[i]);
        if (!plain)
            sample_elsewhere(s, &draw[i], n_vocab);
        asks[i] = ask_of(&draw[i], plain);
    }
    ml_cuda_note(s,
                 cudaMemcpyAsync(there, asks, (size_t)n * sizeof *asks,
                                 cudaMemcpyHostToDevice, s->stream),
                 "drawing");
    sample_kernel<<<(unsigned)n, ML_ROW_THREADS, 0, s->stream>>>(out, there, n_vocab);
    ml_cuda_launched(s, "drawing");
    ml_cuda_note(s,
                 cudaMemcpyAsync(answers, out, (size_t)n * sizeof *out,
                                 cudaMemcpyDeviceToHost, s->stream),
                 "drawing");
    ml_cuda_note(s, cudaStreamSynchronize(s->stream), "drawing");
    for (int i = 0; i < n; i++) {
        if (!is_plain(&draw[i]) && draw[i].opts->dist == ML_DIST_DRAWN)
            continue;
        draw[i].id = answers[i].id;
        draw[i].logprob = answers[i].logprob;
        draw[i].entropy = answers[i].entropy;
    }
}

void ml_cuda_sample(ml_stream *s, struct ml_draw *draw, int64_t n, int64_t n_vocab,
                    void *scratch) {
    static thread_local ask asks[BATCH];
    static thread_local answer answers[BATCH];

    for (int64_t at = 0; at < n; at += BATCH)
        sample_batch(ml_cuda(s), draw + at, (int)(n - at < BATCH ? n - at : BATCH), n_vocab,
                     scratch, asks, answers);
}
