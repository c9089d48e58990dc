/* qk_norm_rope_kv.cu - QK norm, RoPE and the write to the KV cache in one kernel.
 *
 * A team of 8 threads has a head: a thread has a pack of 8 numbers and the one half a head
 * behind it, with which RoPE pairs it.  The norm's sum has the order of norm.cu, and every number
 * is rounded after the norm and after RoPE, as the single ops do. */
#include "backend/cuda/attn/qk_norm_rope_kv.cuh"

#include "backend/cuda/attn/attn_codes.cuh"
#include "backend/cuda/stored.cuh"

enum {
    THREADS = 64,
    TEAM = 8,
    TEAMS = THREADS / TEAM,
    V = 8,
    MANY_ROWS = 512, /* enough blocks without one for each TEAMS heads */
    MANY_HEADS = 2   /* then a team has so many heads of a token */
};

/* A thread's numbers of a head: e .. e + 7, and those half a head behind them. */
struct head_part {
    ml_stored<bf16, V> low, high;

    __device__ void clear(void) {
        low.clear();
        high.clear();
    }
    __device__ void load(const bf16 *from, int half) {
        low.load(from);
        high.load(from + half);
    }
    __device__ void store(bf16 *to, int half) const {
        low.store(to);
        high.store(to + half);
    }
    __device__ void get(float (&l)[V], float (&h)[V]) const {
        low.get(l);
        high.get(h);
    }
    __device__ void set(const float (&l)[V], const float (&h)[V]) {
        low.set(l);
        high.set(h);
    }
};

/* Over a head, of the sums of each pack, in the order of norm.cu: a tree over 16 lanes, of which lane
 * i has pack i.  Of heads of less than 128 numbers, lane i + 8 is not this thread's second pack. */
__device__ static float head_sum(float low, float high, int packs) {
    int thread = (int)threadIdx.x % TEAM;

    if (packs != TEAM)
        high = __shfl_sync(0xffffffffu, high, (thread - packs) & (TEAM - 1), TEAM);
    low += high;
#pragma unroll
    for (int i = TEAM / 2; i; i >>= 1)
        low += __shfl_xor_sync(0xffffffffu, low, i);
    return low;
}

__device__ static float squares(const float (&x)[V]) {
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < V; j++)
        sum = fmaf(x[j], x[j], sum);
    return sum;
}

__device__ static void norm_pack(float (&x)[V], float r, const float *weight, float more) {
    float w[V];

    ml_load(w, weight);
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = (x[j] * r) * (w[j] + more);
}

__device__ static void norm(head_part &x, const ml_qk_norm_rope_side &s, int half, int e) {
    float low[V], high[V], sum, r, more = s.plus_one ? 1.0f : 0.0f;

    x.get(low, high);
    sum = head_sum(squares(low), squares(high), half / V);
    r = 1.0f / sqrtf(sum / (float)(2 * half) + s.eps);
    if (e >= half)
        return;
    norm_pack(low, r, s.norm + e, more);
    norm_pack(high, r, s.norm + half + e, more);
    x.set(low, high);
}

/* The cosines and sines of a thread's pairs. */
struct angles {
    float cosine[V], sine[V];
};

/* RoPE (rotate-half). */
__device__ static void turn(head_part &x, const angles &a) {
    float low[V], high[V];

    x.get(low, high);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float l = low[j], h = high[j];
        low[j] = fmaf(l, a.cosine[j], -(h * a.sine[j]));
        high[j] = fmaf(h, a.cosine[j], l * a.sine[j]);
    }
    x.set(low, high);
}

/* The bits of the largest magnitude of a head. */
__device__ static uint32_t most_of(const float (&low)[V], const float (&high)[V]) {
    uint32_t most = 0;

#pragma unroll
    for (int j = 0; j < V; j++)
        most = max(most, max(attn_magnitude(low[j]), attn_magnitude(high[j])));
#pragma unroll
    for (int i = TEAM / 2; i; i >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, i));
    return most;
}

/* Codes of eight numbers. */
template <int FORMAT>
__device__ static uint2 encode(const float (&x)[V], const attn_scale &s) {
    uint32_t two[V / 2];

#pragma unroll
    for (int j = 0; j < V / 2; j++)
        two[j] = attn_encode2(x[2 * j], x[2 * j + 1], s, FORMAT);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Codes of 16 elements of a key, of which this thread has the first or the last eight and its neighbour the
 * others: those of the places 0 .. 7 or 8 .. 15 (attn_codes.cuh).  Both threads call it. */
__device__ static uint2 pair_codes(uint2 own, bool last) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, last ? own.x : own.y, 1);
    uint32_t lo = last ? other : own.x, hi = last ? own.y : other;

    return make_uint2(__byte_perm(lo, hi, 0x5410), __byte_perm(lo, hi, 0x7632));
}

/* Elements e .. e + 7 of a key whose neighbours are not this thread's and the next one's. */
__device__ static void put_pairs(uint8_t *row, uint2 codes, int e, bool paired) {
#pragma unroll
    for (int j = 0; j < V; j += 2)
        *(uint16_t *)(row + attn_code_place(e + j, paired)) =
            (uint16_t)((j < 4 ? codes.x : codes.y) >> j % 4 * 8);
}

/* A head of a token, of q, k or v. */
struct head_of {
    bool is_q, is_v, there; /* there: the thread has numbers of it */
    int index;              /* among those of its kind */

    __device__ head_of(const attn_call<bf16> &c, int head, int e)
        : is_q(head < c.n_head), is_v(head >= c.n_head + c.n_kv),
          there(head < c.n_head + 2 * c.n_kv && e < c.d / 2),
          index(is_q ? head : head - c.n_head - (is_v ? c.n_kv : 0)) {}
};

/* Where keys and values of a token are written. */
struct kv_slot {
    const int32_t *page;
    int pos;
};

__device__ static kv_slot slot_of(const attn_call<bf16> &c, int row, int seq) {
    return { c.page + c.page_start[seq], c.pos[row] };
}

/* All threads call it: they look for the largest magnitude together, and exchange codes of keys. */
template <int FORMAT>
__device__ static void put_kv_codes(const attn_call<bf16> &c, const head_of &h,
                                    const head_part &x, int e, const kv_slot &to) {
    int half = c.d / 2;
    bool paired = half % ATTN_UNIT == 0, last = e % ATTN_UNIT != 0;
    float low[V], high[V];
    uint2 codes[2];
    attn_scale s;
    attn_coded at;

    if (__all_sync(0xffffffffu, h.is_q))
        return;
    x.get(low, high);
    s = attn_scale_of(most_of(low, high), FORMAT);
    codes[0] = encode<FORMAT>(low, s);
    codes[1] = encode<FORMAT>(high, s);
    if (paired) {
        uint2 key[2] = { pair_codes(codes[0], last), pair_codes(codes[1], last) };
        if (!h.is_v)
            memcpy(codes, key, sizeof codes);
    }
    if (!h.there || h.is_q || to.pos < 0)
        return;
    at = h.is_v ? attn_coded_value(c, to.page, h.index, to.pos)
                : attn_coded_key(c, to.page, h.index, to.pos);
    if (e == 0)
        *at.scale = s.scale;
    if (h.is_v || paired) {
        *(uint2 *)(at.code + e) = codes[0];
        *(uint2 *)(at.code + e + half) = codes[1];
    } else {
        put_pairs(at.code, codes[0], e, attn_is_paired(c.d));
        put_pairs(at.code, codes[1], e + half, attn_is_paired(c.d));
    }
}

/* FORMAT: of codes in pages, or ATTN_NO_CODES. */
template <int FORMAT>
__device__ static void put_kv(const attn_call<bf16> &c, const head_of &h,
                              const head_part &x, int e, const kv_slot &to) {
    if constexpr (FORMAT != ATTN_NO_CODES)
        put_kv_codes<FORMAT>(c, h, x, e, to);
    else if (h.there && !h.is_q && to.pos >= 0)
        x.store((bf16 *)(h.is_v ? attn_value(c, to.page, h.index, to.pos)
                                : attn_key(c, to.page, h.index, to.pos)) +
                    e,
                c.d / 2);
}

/* Norm and RoPE of a head of q or k.  All threads of a warp call it: its teams shuffle together. */
__device__ static void norm_rope(head_part &x, const ml_qk_norm_rope &h, const head_of &o,
                                 const angles &a, int row, int e) {
    const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
    int half = h.to.d / 2;
    int64_t at = ((int64_t)row * (o.is_q ? h.to.n_head : h.to.n_kv) + o.index) * h.to.d + e;
    head_part y = x;

    if (h.k.norm)
        norm(y, s, half, e);
    if (!o.there || o.is_v)
        return;
    if (s.normed)
        y.store(s.normed + at, half);
    turn(y, a);
    y.store(s.rotated + at, half);
    x = y;
}

/* Teams have HEADS heads of a token, with the same angles and KV slot. */
template <int HEADS, int FORMAT>
__global__ static void __launch_bounds__(THREADS, FORMAT == ATTN_NO_CODES ? 14 : 12)
    qk_norm_rope_kernel(const __grid_constant__ ml_qk_norm_rope h) {
    const attn_call<bf16> &c = h.to;
    int row = (int)blockIdx.x, half = c.d / 2, e = (int)threadIdx.x % TEAM * V;
    int first = (int)blockIdx.y * TEAMS * HEADS + (int)threadIdx.x / TEAM;
    bool decodes = c.n_token == c.n_seq;
    const float *cs = h.cs + (int64_t)row * c.d + e;
    head_part x[HEADS];
    kv_slot slot;
    angles a = {};

    ml_grid_release();
    if (decodes) /* no kernel of the step writes the batch: read before the wait */
        slot = slot_of(c, row, row);
    ml_grid_wait();
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        head_of o(c, first + i * TEAMS, e);
        const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
        if (o.there)
            x[i].load((o.is_v ? c.v + row * h.v_ld : s.x + row * s.ld) + o.index * c.d + e,
                      half);
        else
            x[i].clear();
    }
    if (e < half) {
        ml_load(a.cosine, cs);
        ml_load(a.sine, cs + half);
    }
    if (!decodes)
        slot = slot_of(c, row, attn_seq_of(c.seq_start, c.n_seq, row));
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        head_of o(c, first + i * TEAMS, e);
        if (!__all_sync(0xffffffffu, o.is_v))
            norm_rope(x[i], h, o, a, row, e);
        put_kv<FORMAT>(c, o, x[i], e, slot);
    }
}

template <int HEADS> static void launch(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    dim3 grid((unsigned)h->to.n_token,
              ml_cuda_blocks(h->to.n_head + 2 * h->to.n_kv, TEAMS * HEADS));

    auto kernel = h->to.format == ATTN_E4M3   ? qk_norm_rope_kernel<HEADS, ATTN_E4M3>
                  : h->to.format == ATTN_E5M2 ? qk_norm_rope_kernel<HEADS, ATTN_E5M2>
                  : h->to.format == ATTN_INT8 ? qk_norm_rope_kernel<HEADS, ATTN_INT8>
                                              : qk_norm_rope_kernel<HEADS, ATTN_NO_CODES>;

    ml_cuda_launch(s, "heads", kernel, grid, THREADS, 0, *h);
}

void ml_qk_norm_rope_run(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    if (h->to.n_token >= MANY_ROWS)
        launch<MANY_HEADS>(s, h);
    else if (h->to.n_token > 0)
        launch<1>(s, h);
}
