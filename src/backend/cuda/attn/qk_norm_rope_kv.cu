/* qk_norm_rope_kv.cu - QK norm, RoPE and the write to the KV cache in one kernel.
 *
 * A team of 16 threads has a head, 8 numbers each: the norm's sum has the order of
 * norm.cu, and every number is rounded after the norm and after RoPE, as the single ops
 * do. */
#include "backend/cuda/attn/qk_norm_rope_kv.cuh"

#include "backend/cuda/attn/attn_codes.cuh"

enum { THREADS = 128, TEAM = 16, TEAMS = THREADS / TEAM, V = 8 };

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

/* RoPE (rotate-half): a thread's numbers pair with those of the thread half a head away. */
__device__ static void turn(float (&x)[V], const float *cs, int half, int e) {
    int lane = (int)threadIdx.x % 32, away = half / V;
    bool low = e < half;
    float other[V];

#pragma unroll
    for (int j = 0; j < V; j++)
        other[j] = __shfl_sync(0xffffffffu, x[j], low ? lane + away : lane - away);
    if (e >= 2 * half)
        return;
#pragma unroll
    for (int j = 0; j < V; j++) {
        int k = (low ? e : e - half) + j;
        float cosine = cs[k], sine = cs[half + k];
        x[j] = low ? fmaf(x[j], cosine, -(other[j] * sine))
                   : fmaf(x[j], cosine, other[j] * sine);
    }
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

/* No early return: a warp's teams shuffle together; those of values ignore the result. */
__global__ static void __launch_bounds__(THREADS)
    qk_norm_rope_kernel(const __grid_constant__ ml_qk_norm_rope h) {
    const attn_call<bf16> &c = h.to;
    int per_row = c.n_head + 2 * c.n_kv, d = c.d, e = (int)threadIdx.x % TEAM * V;
    int64_t i = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    bool there = i < (int64_t)c.n_token * per_row && e < d;
    int row = there ? (int)(i / per_row) : 0, head = there ? (int)(i % per_row) : 0;
    bool is_q = head < c.n_head, is_v = head >= c.n_head + c.n_kv;
    const ml_qk_norm_rope_side &s = is_q ? h.q : h.k;
    int kv = is_q ? head : head - c.n_head - (is_v ? c.n_kv : 0);
    int64_t at = ((int64_t)row * (is_q ? c.n_head : c.n_kv) + kv) * d + e;
    float x[V] = {}, y[V];
    const int32_t *page;
    uint32_t most;
    int pos;

    ml_grid_release();
    /* No kernel of the step writes the batch: read before the wait. */
    pos = c.pos[row];
    page =
        c.page +
        c.page_start[c.n_token == c.n_seq ? row : attn_seq_of(c.seq_start, c.n_seq, row)];
    ml_grid_wait();
    if (there)
        ml_load(x, (is_v ? c.v + row * h.v_ld : s.x + row * s.ld) + kv * d + e);
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] = x[j];
    if (h.k.norm)
        norm(y, s, d, e);
    if (s.normed && there && !is_v)
        ml_store(s.normed + at, y);
    turn(y, h.cs + (int64_t)row * d, d / 2, e);
    if (there && !is_v)
        ml_store(s.rotated + at, y);
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] = is_v ? x[j] : y[j];
    most = c.format ? most_of(y) : 0;
    if (!there || is_q || pos < 0)
        return;
    if (c.format)
        put_codes(is_v ? attn_coded_value(c, page, kv, pos)
                       : attn_coded_key(c, page, kv, pos),
                  y, e, !is_v, most, c.format);
    else if (is_v)
        ml_store((bf16 *)attn_value(c, page, kv, pos) + e, y);
    else
        ml_store((bf16 *)attn_key(c, page, kv, pos) + e, y);
}

void ml_qk_norm_rope_run(ml_cuda_stream *s, const ml_qk_norm_rope *h) {
    int64_t n = (int64_t)h->to.n_token * (h->to.n_head + 2 * h->to.n_kv);

    if (n > 0)
        ml_cuda_launch(s, "heads", qk_norm_rope_kernel, dim3(ml_cuda_blocks(n, TEAMS)),
                       THREADS, 0, *h);
}
