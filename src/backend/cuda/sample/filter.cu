/* filter.cu - top-k, top-p and min-p sampling by radix select.
 *
 * The rules are the CPU's (docs/NUMERICS.md, "Drawing a token"): tokens are ordered by
 * their distance from the largest logit, and a prefix of that order is kept.  A
 * distance is a float >= 0, whose bits sort like an integer: a radix select over them,
 * DIGIT bits per pass from the top, finds the last token that is kept (the edge)
 * without a sort.  Weights are integers here, in units of 2^-44 of the largest: their
 * sum is exact, in whatever order threads add them. */
#include "backend/cuda/sample/sample.cuh"

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    DIGIT = 4, /* bits of a distance per pass */
    BINS = 1 << DIGIT,
    KEY_BITS = 31, /* the sign bit of a distance is 0 */
    TILE = 128,
    MOST_TILES = ML_SPLITS * ML_SPLIT / TILE
};
static_assert(BINS == WARPS, "a warp adds up each bin");

typedef unsigned long long mass_t;

/* The histogram of a digit: weight and number of tokens, per thread and in total. */
struct filter_bins {
    mass_t mass[BINS][THREADS], all_mass[BINS];
    uint32_t count[BINS][THREADS], all_count[BINS];
};

/* The edge.  key: the leading bits of the last token that is kept, as far as they are
 * known; count, mass: number and weight of the tokens before all that begin with key;
 * here: how many begin with key. */
struct filter_edge {
    uint32_t key, count, here;
    mass_t mass, each; /* each: weight of a token at the edge, once all bits are known */
    int32_t last_id;   /* tokens at the edge are kept up to this id */
};

struct filter_smem {
    union {
        filter_bins bins;
        mass_t tile[MOST_TILES];
    };
    filter_edge edge;
    double limit; /* top-p: the most mass before a token that is kept */
    float reduce[WARPS];
    int32_t chosen;
};

/* A row of logits, and its filters. */
struct filter_row {
    const float *z;
    int n;
    float t, m, near;
    uint32_t top_k;
};

__device__ static float distance(const filter_row &r, int i) {
    float d = r.m - ml_scaled(r.z[i], r.t);
    return d < INFINITY ? ml_max(d, 0.0f) : INFINITY; /* NaN too */
}

__device__ static mass_t weight(float d) {
    return __float2ull_rn(ml_exp(-d) * 0x1p44f);
}

__device__ static float largest(const filter_row &r, float *sm) {
    float m = -INFINITY;
    for (int i = (int)threadIdx.x; i < r.n; i += THREADS) {
        float s = ml_scaled(r.z[i], r.t);
        m = ml_max(s == s ? s : -INFINITY, m);
    }
    return ml_block_max<WARPS>(m, sm);
}

__device__ static mass_t warp_sum(mass_t x) {
    for (int w = 16; w; w >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, w);
    return x;
}

/* ---- radix select of the edge ---- */

/* Histogram of the next digit of the tokens whose distance begins with `key`. */
__device__ static void count_bins(filter_bins &b, const filter_row &r, uint32_t key,
                                  int shift, int bits) {
    int me = (int)threadIdx.x, warp = me / 32, lane = me % 32;
    mass_t mass = 0;
    uint32_t count = 0;

    for (int k = 0; k < BINS; k++)
        b.mass[k][me] = b.count[k][me] = 0;
    for (int i = me; i < r.n; i += THREADS) {
        float d = distance(r, i);
        uint32_t u = __float_as_uint(d) >> shift, bin = u & ((1u << bits) - 1);
        if (u >> bits != key)
            continue;
        b.count[bin][me]++;
        b.mass[bin][me] += weight(d);
    }
    __syncthreads();
    for (int i = lane; i < THREADS; i += 32) {
        mass += b.mass[warp][i];
        count += b.count[warp][i];
    }
    mass = warp_sum(mass);
    count = (uint32_t)warp_sum(count);
    if (lane == 0) {
        b.all_mass[warp] = mass;
        b.all_count[warp] = count;
    }
    __syncthreads();
}

/* Appends a digit to the edge, by one thread: the first bin in which a limit is
 * reached, else the last with tokens. */
__device__ static void descend(filter_smem &sm, const filter_row &r, int bits) {
    const filter_bins &b = sm.bins;
    filter_edge &e = sm.edge;
    uint32_t count = e.count, found = 0;
    mass_t mass = e.mass;

    for (uint32_t k = 0; k < 1u << bits; k++) {
        if (b.all_count[k] == 0)
            continue;
        found = k;
        e.count = count;
        e.mass = mass;
        e.here = b.all_count[k];
        count += b.all_count[k];
        mass += b.all_mass[k];
        if (count >= r.top_k || (double)mass > sm.limit)
            break;
    }
    e.key = e.key << bits | found;
    e.each = weight(__uint_as_float(e.key));
}

/* How many of the tokens at the edge, which have equal distance, are kept; at least the
 * one that reached a limit. */
__device__ static uint32_t stay_at_edge(const filter_smem &sm, const filter_row &r) {
    const filter_edge &e = sm.edge;
    uint32_t by_count = r.top_k - e.count, n = e.here < by_count ? e.here : by_count;
    double by_mass = (sm.limit - (double)e.mass) / (double)e.each;

    return e.each && by_mass + 1.0 < (double)n ? (uint32_t)by_mass + 1 : n;
}

/* The id of the n-th token at the edge, by one warp. */
__device__ static int32_t nth_at_edge(const filter_row &r, uint32_t key, uint32_t n) {
    int lane = (int)threadIdx.x % 32;

    for (int base = 0; base < r.n; base += 32) {
        int i = base + lane;
        bool at = i < r.n && __float_as_uint(distance(r, i)) == key;
        unsigned who = __ballot_sync(0xffffffffu, at);
        if (n <= (uint32_t)__popc(who))
            return base + (int)__fns(who, 0, (int)n);
        n -= (uint32_t)__popc(who);
    }
    return r.n;
}

__device__ static void find_edge(filter_smem &sm, const filter_row &r, float top_p) {
    int left = KEY_BITS;

    if (threadIdx.x == 0) {
        filter_edge none = {};
        sm.edge = none;
        sm.limit = INFINITY;
    }
    __syncthreads();
    while (left > 0) {
        int bits = left < DIGIT ? left : DIGIT;
        left -= bits;
        count_bins(sm.bins, r, sm.edge.key, left, bits);
        if (threadIdx.x == 0) {
            if (left == KEY_BITS - DIGIT && top_p < 1.0f) {
                mass_t all = 0;
                for (int k = 0; k < BINS; k++)
                    all += sm.bins.all_mass[k];
                sm.limit = (double)top_p * (double)all;
            }
            descend(sm, r, bits);
        }
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        uint32_t n = stay_at_edge(sm, r);
        int32_t last = n < sm.edge.here ? nth_at_edge(r, sm.edge.key, n) : INT32_MAX;
        __syncwarp();
        if (threadIdx.x == 0)
            sm.edge.last_id = last;
    }
    __syncthreads();
}

/* For min-p as the only filter. */
__device__ static void keep_all(filter_smem &sm) {
    if (threadIdx.x == 0) {
        sm.edge.key = UINT32_MAX;
        sm.edge.last_id = INT32_MAX;
    }
    __syncthreads();
}

/* ---- the draw ---- */

/* Whether a token at this distance is kept. */
__device__ static bool is_kept(const filter_row &r, const filter_edge &e, int i, float d) {
    uint32_t key = __float_as_uint(d);

    return (key < e.key || (key == e.key && i <= e.last_id)) && d <= r.near;
}

/* A token's weight; 0 if it is not kept. */
__device__ static mass_t kept_weight(const filter_row &r, const filter_edge &e, int i) {
    float d = i < r.n ? distance(r, i) : INFINITY;

    return i < r.n && is_kept(r, e, i, d) ? weight(d) : 0;
}

/* The bits of the tokens that are kept, 32 by each warp at a time. */
__device__ static void write_bits(const filter_row &r, const filter_edge &e,
                                  uint32_t *bits) {
    int lane = (int)threadIdx.x % 32;

    for (int base = (int)threadIdx.x - lane; base < r.n; base += THREADS) {
        float d = base + lane < r.n ? distance(r, base + lane) : INFINITY;
        bool kept = d < INFINITY && is_kept(r, e, base + lane, d);
        unsigned word = __ballot_sync(0xffffffffu, kept);
        if (lane == 0)
            bits[base / 32] = word;
    }
}

/* Index of the number at which the running sum, starting at *sum, exceeds target, by
 * one warp; *sum becomes the running sum before it.  -1: none. */
__device__ static int passed(const mass_t *mass, int n, double target, mass_t *sum) {
    int lane = (int)threadIdx.x % 32, per = (n + 31) / 32, first = lane * per, at = -1;
    int end = first + per < n ? first + per : n;
    mass_t own = 0, before;
    unsigned hit;

    for (int i = first; i < end; i++)
        own += mass[i];
    before = own;
    for (int w = 1; w < 32; w <<= 1) {
        mass_t below = __shfl_up_sync(0xffffffffu, before, w);
        if (lane >= w)
            before += below;
    }
    before += *sum - own;
    for (int i = first; i < end && at < 0; i++) {
        if (mass[i] && (double)(before + mass[i]) > target)
            at = i;
        else
            before += mass[i];
    }
    hit = __ballot_sync(0xffffffffu, at >= 0);
    if (!hit)
        return -1;
    *sum = __shfl_sync(0xffffffffu, before, __ffs((int)hit) - 1);
    return __shfl_sync(0xffffffffu, at, __ffs((int)hit) - 1);
}

__device__ static void weigh_tiles(filter_smem &sm, const filter_row &r, int tiles) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    for (int tile = warp; tile < tiles; tile += WARPS) {
        mass_t sum = 0;
        for (int k = lane; k < TILE; k += 32)
            sum += kept_weight(r, sm.edge, tile * TILE + k);
        sum = warp_sum(sum);
        if (lane == 0)
            sm.tile[tile] = sum;
    }
    __syncthreads();
}

/* Inverse-CDF draw by one warp: the tile, then the token in it. */
__device__ static int draw(filter_smem &sm, const filter_row &r, int tiles, double u) {
    __shared__ mass_t weights[TILE];
    int lane = (int)threadIdx.x % 32, tile, at;
    mass_t all = 0, sum = 0;
    double target;

    for (int i = lane; i < tiles; i += 32)
        all += sm.tile[i];
    target = u * (double)warp_sum(all);
    tile = passed(sm.tile, tiles, target, &sum);
    if (tile < 0)
        return -1;
    for (int k = lane; k < TILE; k += 32)
        weights[k] = kept_weight(r, sm.edge, tile * TILE + k);
    __syncwarp();
    at = passed(weights, TILE, target, &sum);
    return at < 0 ? -1 : tile * TILE + at;
}

__global__ static void __launch_bounds__(THREADS)
    filter_kernel(int32_t *chosen, const ml_device_draw *draws, int64_t n_vocab) {
    extern __shared__ __align__(16) unsigned char smem[];
    filter_smem &sm = *(filter_smem *)smem;
    ml_device_draw a = draws[blockIdx.x];
    filter_row r = { a.logits, (int)n_vocab, a.temperature, 0.0f, a.near, a.top_k };
    int tiles = (r.n + TILE - 1) / TILE;

    if (!a.filtered)
        return;
    r.m = largest(r, sm.reduce);
    if (r.top_k < (uint32_t)r.n || a.top_p < 1.0f)
        find_edge(sm, r, a.top_p);
    else
        keep_all(sm);
    if (a.bits)
        write_bits(r, sm.edge, a.bits);
    weigh_tiles(sm, r, tiles);
    if (threadIdx.x < 32) {
        int id = draw(sm, r, tiles, a.u);
        if (threadIdx.x == 0)
            chosen[blockIdx.x] = id;
    }
}

void ml_filter_draws(ml_cuda_stream *s, int32_t *chosen, const ml_device_draw *draws, int n,
                     int64_t n_vocab) {
    ml_cuda_note(s,
                 cudaFuncSetAttribute(filter_kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)sizeof(filter_smem)),
                 "filtering");
    filter_kernel<<<(unsigned)n, THREADS, sizeof(filter_smem), s->stream>>>(chosen, draws,
                                                                            n_vocab);
    ml_cuda_launched(s, "filtering");
}
