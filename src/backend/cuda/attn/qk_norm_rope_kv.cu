/* qk_norm_rope_kv.cu - QK norm, RoPE and the write to the KV cache in one kernel.
 *
 * A team of 16 threads has a head, 8 numbers each: the norm's sum has the order of
 * norm.cu, and every number is rounded after the norm and after RoPE, as the single ops
 * do. */
#include "backend/cuda/attn/qk_norm_rope_kv.cuh"

#include "backend/cuda/attn/attn_codes.cuh"

enum {
    THREADS = 128,
    TEAM = 16,
    TEAMS = THREADS / TEAM,
    V = 8,
    MANY_ROWS = 512, /* enough blocks without one for each TEAMS heads */
    MANY_HEADS = 4   /* then a team has so many heads of a token */
};

__device__ static void round_all(float (&x)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = ml_f32(ml_as<bf16>(x[j]));
}

__device__ static void norm(float (&x)[V], const ml_qk_norm_rope_side &s, int d, int e) {
    float sum = 0.0f, w[V] = {}, r;

#pragma unroll
    for (int j = 0; j < V; j++)
        sum = fmaf(x[j], x[j], sum);
#pragma unroll
    for (int i = TEAM / 2; i; i >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    r = 1.0f / sqrtf(sum / (float)d + s.eps);
    if (e < d)
        ml_load(w, s.norm + e);
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = (x[j] * r) * (w[j] + (s.plus_one ? 1.0f : 0.0f));
    round_all(x);
}

/* The cosines and sines of a thread's numbers. */
struct angles {
    float cosine[V], sine[V];

    __device__ angles(const float *cs, int half, int e) : cosine(), sine() {
        if (e < 2 * half) {
            ml_load(cosine, cs + (e < half ? e : e - half));
            ml_load(sine, cs + half + (e < half ? e : e - half));
        }
    }
};

/* RoPE (rotate-half): a thread's numbers pair with those of the thread half a head away. */
__device__ static void turn(float (&x)[V], const angles &a, int half, int e) {
    int lane = (int)threadIdx.x % 32, away = half / V;
    bool low = e < half;
    float other[V];

#pragma unroll
    for (int j = 0; j < V; j++)
        other[j] = __shfl_sync(0xffffffffu, x[j], low ? lane + away : lane - away);
    if (e >= 2 * half)
        return;
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = low ? fmaf(x[j], a.cosine[j], -(other[j] * a.sine[j]))
                   : fmaf(x[j], a.cosine[j], other[j] * a.sine[j]);
    round_all(x);
}

/* The bits of the largest magnitude of a head. */
__device__ static uint32_t most_of(const float (&x)[V]) {
    uint32_t most = 0;

#pragma unroll
    for (int j = 0; j < V; j++)
        most = max(most, attn_magnitude(x[j]));
#pragma unroll
    for (int i = TEAM / 2; i; i >>= 1)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, i));
    return most;
}

/* Elements e .. e + 7 of a row; of a key, pairs of them are four codes apart. */
__device__ static void put_codes(const attn_coded &to, const float (&x)[V], int e,
                                 bool paired, uint32_t most, int format) {
    attn_scale s = attn_scale_of(most, format);

#pragma unroll
    for (int j = 0; j < V; j += 2) {
        uint8_t lo = attn_encode(x[j], s, format), hi = attn_encode(x[j + 1], s, format);
        *(uint16_t *)(to.code + attn_code_place(e + j, paired)) = (uint16_t)(lo | hi << 8);
    }
    if (e == 0)
        *to.scale = s.scale;
}

/* Heads of a token: those of q, of k, of v. */
struct head_of {
    bool is_q, is_v, there;
    int index; /* among those of its kind */

    __device__ head_of(const attn_call<bf16> &c, int head, int e)
        : is_q(head < c.n_head), is_v(head >= c.n_head + c.n_kv),
          there(head < c.n_head + 2 * c.n_kv && e < c.d),
          index(is_q ? head : head - c.n_head - (is_v ? c.n_kv : 0)) {}
};

/* Where keys and values of a token are written. */
struct kv_slot {
    const int32_t *page;
    int pos;
};

__device__ static void put_kv(const attn_call<bf16> &c, const head_of &h,
                              const float (&x)[V], int e, const kv_slot &to) {
    uint32_t most = c.format ? most_of(x) : 0;

    if (!h.there || h.is_q || to.pos < 0)
        return;
    if (c.format)
        put_codes(h.is_v ? attn_coded_value(c, to.page, h.index, to.pos)
                         : attn_coded_key(c, to.page, h.index, to.pos),
                  x, e, !h.is_v, most, c.format);
    else if (h.is_v)
        ml_store((bf16 *)attn_value(c, to.page, h.index, to.pos) + e, x);
    else
        ml_store((bf16 *)attn_key(c, to.page, h.index, to.pos) + e, x);
}

/* Teams have HEADS heads of a token, with the same angles and KV slot.  No early return: a warp's
 * teams shuffle together; those of values ignore the result. */
template <int HEADS>
__global__ static void __launch_bounds__(THREADS)
    qk_norm_rope_kernel(const __grid_constant__ ml_qk_norm_rope h) {
    const attn_call<bf16> &c = h.to;
    int row = (int)blockIdx.x, d = c.d, e = (int)threadIdx.x % TEAM * V;
    int first = (int)blockIdx.y * TEAMS * HEADS + (int)threadIdx.x / TEAM;
    ml_pack<bf16, V> x[HEADS];
    kv_slot slot;

    ml_grid_release();
    /* No kernel of the step writes the batch: read before the wait. */
    slot.pos = c.pos[row];
    slot.page =
        c.page +
        c.page_start[c.n_token == c.n_seq ? row : attn_seq_of(c.seq_start, c.n_seq, row)];
    ml_grid_wait();
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        head_of o(c, first + i * TEAMS, e);
        const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
        if (o.there)
            x[i] = *(
                const ml_pack<bf16, V> *)((o.is_v ? c.v + row * h.v_ld : s.x + row * s.ld) +
                                          o.index * d + e);
        else
            x[i] = {};
    }
    angles a(h.cs + (int64_t)row * d, d / 2, e);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        head_of o(c, first + i * TEAMS, e);
        const ml_qk_norm_rope_side &s = o.is_q ? h.q : h.k;
        int64_t at = ((int64_t)row * (o.is_q ? c.n_head : c.n_kv) + o.index) * d + e;
        float y[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = ml_f32(x[i].v[j]);
        if (h.k.norm)
            norm(y, s, d, e);
        if (s.normed && o.there && !o.is_v)
            ml_store(s.normed + at, y);
        turn(y, a, d / 2, e);
        if (o.there && !o.is_v)
            ml_store(s.rotated + at, y);
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = o.is_v ? ml_f32(x[i].v[j]) : y[j];
        put_kv(c, o, y, e, slot);
    }
}

template <int HEADS> static void launch(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    dim3 grid((unsigned)h->to.n_token,
              ml_cuda_blocks(h->to.n_head + 2 * h->to.n_kv, TEAMS * HEADS));

    ml_cuda_launch(s, "heads", qk_norm_rope_kernel<HEADS>, grid, THREADS, 0, *h);
}

void ml_qk_norm_rope_run(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    if (h->to.n_token >= MANY_ROWS)
        launch<MANY_HEADS>(s, h);
    else if (h->to.n_token > 0)
        launch<1>(s, h);
}
