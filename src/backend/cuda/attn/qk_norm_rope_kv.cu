/* qk_norm_rope_kv.cu - QK norm, RoPE and the write to the KV cache in one kernel.
 *
 * A team of 8 threads has a head (head_part.cuh). */
#include "backend/cuda/attn/attn_codes.cuh"
#include "backend/cuda/attn/head_part.cuh"

enum {
    THREADS = 64,
    TEAM = HEAD_TEAM,
    TEAMS = THREADS / TEAM,
    V = HEAD_PACK,
    MANY_ROWS = 512, /* enough blocks without one for each TEAMS heads */
    MANY_HEADS = 2   /* then a team has so many heads of a token */
};

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

/* Teams have HEADS heads of a token, with the same angles and KV slot. */
template <int HEADS, int FORMAT>
__global__ static void __launch_bounds__(THREADS, FORMAT == ATTN_NO_CODES ? 14 : 12)
    qk_norm_rope_kernel(const __grid_constant__ ml_qk_norm_rope h) {
    const attn_call<bf16> &c = h.to;
    int row = (int)blockIdx.x, half = c.d / 2, e = (int)threadIdx.x % TEAM * V;
    int first = (int)blockIdx.y * TEAMS * HEADS + (int)threadIdx.x / TEAM;
    bool decodes = c.n_token == c.n_seq;
    head_part x[HEADS];
    kv_slot slot;
    head_angles a = {};

    ml_grid_release();
    if (decodes) /* no kernel of the step writes the batch: read before the wait */
        slot = slot_of(c, row, row);
    ml_grid_wait();
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        head_load(x[i], h, head_of(c, first + i * TEAMS, e), row, e, half);
    if (e < half)
        a.load(h.cs + (int64_t)row * c.d + e, half);
    if (!decodes)
        slot = slot_of(c, row, attn_seq_of(c.seq_start, c.n_seq, row));
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        head_of o(c, first + i * TEAMS, e);
        if (!__all_sync(0xffffffffu, o.is_v))
            head_norm_rope(x[i], h, o, head_weights(h, o, e), a, row, e, half);
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
