/* attn_plain.cu - attention with a warp per row: f32, and heads that mma does not take. */
#include "backend/cuda/attn/attn.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, MAX_D = 256, PER_LANE = MAX_D / 32 };

/* Copies a row to the warp's buffer in shared memory. */
template <class T> __device__ static void stage_row(float *to, const T *from, int d) {
    for (int e = (int)threadIdx.x % 32; e < d; e += 32)
        to[e] = ml_f32(from[e]);
    __syncwarp();
}

template <class T> __device__ static float dot_with(const float *a, const T *b, int d) {
    float sum = 0.0f;
    for (int e = 0; e < d; e++)
        sum = fmaf(a[e], ml_f32(b[e]), sum);
    return sum;
}

template <class T> __device__ static float score(const attn_call<T> &c, float dot) {
    float s = dot * c.scale;
    return c.softcap != 0.0f ? c.softcap * ml_tanh(s / c.softcap) : s;
}

template <class T> __device__ static void put(T *to, float x, bool add) {
    *to = ml_as<T>(add ? ml_f32(*to) + x : x);
}

/* sum += w times a row; a lane has every 32nd column. */
template <class T>
__device__ static void add_row(float (&sum)[PER_LANE], float w, const T *row, int d) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 32 * e < d)
            sum[e] = fmaf(w, ml_f32(row[lane + 32 * e]), sum[e]);
}

/* A token's row of one head: the KV head it reads, and its keys, first .. pos. */
struct query {
    int head, pos, first;
    const int32_t *page;
};

template <class T> __device__ static query query_of(const attn_call<T> &c, int64_t i) {
    int token = (int)(i / c.n_head), pos = c.pos[token];
    return { (int)(i % c.n_head) / c.group, pos, attn_first_key(c, pos),
             c.page + c.page_start[attn_seq_of(c.seq_start, c.n_seq, token)] };
}

/* ---- forward ---- */

template <class T> __global__ void plain_forward(attn_call<T> c) {
    __shared__ float row[WARPS][MAX_D], weight[WARPS][ML_KTILE];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp;
    query q;
    float m = -INFINITY, l = 0.0f, acc[PER_LANE] = {};

    if (i >= (int64_t)c.n_token * c.n_head)
        return;
    q = query_of(c, i);
    stage_row(row[warp], c.q + i * c.d, c.d);
    for (int tile = q.first / ML_KTILE * ML_KTILE; tile <= q.pos; tile += ML_KTILE) {
        float s[2], old = m, p, keep;
        for (int k = 0; k < 2; k++) {
            int key = tile + lane + 32 * k;
            s[k] =
                key >= q.first && key <= q.pos
                    ? score(c, dot_with(row[warp], attn_key(c, q.page, q.head, key), c.d))
                    : -INFINITY;
        }
        m = ml_max(m, ml_warp_max(ml_max(s[0], s[1])));
        keep = ml_exp(old - m);
        for (int k = 0; k < 2; k++)
            weight[warp][lane + 32 * k] = s[k] = ml_exp(s[k] - m);
        p = ml_warp_sum(s[0] + s[1]);
        l = fmaf(l, keep, p);
        __syncwarp();
#pragma unroll
        for (int e = 0; e < PER_LANE; e++)
            acc[e] *= keep;
        for (int key = tile < q.first ? q.first : tile;
             key <= q.pos && key < tile + ML_KTILE; key++)
            add_row(acc, weight[warp][key - tile], attn_value(c, q.page, q.head, key), c.d);
        __syncwarp();
    }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 32 * e < c.d)
            c.o[i * c.d + lane + 32 * e] = ml_as<T>(acc[e] / l);
    if (lane == 0) {
        c.stat[2 * i] = m;
        c.stat[2 * i + 1] = l;
    }
}

template <class T> void ml_attn_plain(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned blocks = ml_cuda_blocks((int64_t)c.n_token * c.n_head, WARPS);
    plain_forward<T><<<blocks, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "attention");
}

/* ---- backward ---- */

/* dq.  A warp for each row and head; keys in ascending order. */
template <class T> __global__ void plain_back_query(attn_call<T> c) {
    __shared__ float row[WARPS][MAX_D], out[WARPS][MAX_D], slope[WARPS][ML_KTILE];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp;
    query q;
    float m, inv_l, delta, acc[PER_LANE] = {};

    if (i >= (int64_t)c.n_token * c.n_head)
        return;
    q = query_of(c, i);
    m = c.stat[2 * i];
    inv_l = 1.0f / c.stat[2 * i + 1];
    delta = c.delta[i];
    stage_row(row[warp], c.q + i * c.d, c.d);
    stage_row(out[warp], c.dout + i * c.d, c.d);
    for (int tile = q.first / ML_KTILE * ML_KTILE; tile <= q.pos; tile += ML_KTILE) {
        for (int key = tile + lane; key < tile + ML_KTILE; key += 32) {
            float s, dp, ds = 0.0f;
            if (key >= q.first && key <= q.pos) {
                s = score(c, dot_with(row[warp], attn_key(c, q.page, q.head, key), c.d));
                dp = dot_with(out[warp], attn_value(c, q.page, q.head, key), c.d);
                ds = (ml_exp(s - m) * inv_l) * (dp - delta) * c.scale;
                if (c.softcap != 0.0f)
                    ds *= attn_cap_slope(s, c.softcap);
            }
            slope[warp][key - tile] = ds;
        }
        __syncwarp();
        for (int key = tile < q.first ? q.first : tile;
             key <= q.pos && key < tile + ML_KTILE; key++)
            add_row(acc, slope[warp][key - tile], attn_key(c, q.page, q.head, key), c.d);
        __syncwarp();
    }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 32 * e < c.d)
            put(c.dq + i * c.d + lane + 32 * e, acc[e], c.add_q);
}

/* A warp's dot product; every lane gets it. */
template <class T> __device__ static float warp_dot(const float *a, const T *b, int d) {
    float sum = 0.0f;
    for (int e = (int)threadIdx.x % 32; e < d; e += 32)
        sum = fmaf(a[e], ml_f32(b[e]), sum);
    return ml_warp_sum(sum);
}

/* dk, dv.  A warp for each key and KV head; ascending positions, then the group's heads. */
template <class T> __global__ void plain_back_key(attn_call<T> c) {
    __shared__ float key_row[WARPS][MAX_D], value_row[WARPS][MAX_D];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp;
    int token, head, seq, key;
    const int32_t *page;
    float dk[PER_LANE] = {}, dv[PER_LANE] = {};

    if (i >= (int64_t)c.n_token * c.n_kv)
        return;
    token = (int)(i / c.n_kv);
    head = (int)(i % c.n_kv);
    seq = attn_seq_of(c.seq_start, c.n_seq, token);
    page = c.page + c.page_start[seq];
    key = c.pos[token];
    stage_row(key_row[warp], attn_key(c, page, head, key), c.d);
    stage_row(value_row[warp], attn_value(c, page, head, key), c.d);
    for (int t = token; t < c.seq_start[seq + 1] && attn_first_key(c, c.pos[t]) <= key; t++)
        for (int g = 0; g < c.group; g++) {
            int64_t at = (int64_t)t * c.n_head + head * c.group + g;
            float s = score(c, warp_dot(key_row[warp], c.q + at * c.d, c.d));
            float dp = warp_dot(value_row[warp], c.dout + at * c.d, c.d);
            float p = ml_exp(s - c.stat[2 * at]) * (1.0f / c.stat[2 * at + 1]);
            float ds = p * (dp - c.delta[at]) * c.scale;
            if (c.softcap != 0.0f)
                ds *= attn_cap_slope(s, c.softcap);
            add_row(dk, ds, c.q + at * c.d, c.d);
            add_row(dv, p, c.dout + at * c.d, c.d);
        }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++)
        if (lane + 32 * e < c.d) {
            if (c.dk)
                put(c.dk + i * c.d + lane + 32 * e, dk[e], c.add_k);
            if (c.dv_out)
                put(c.dv_out + i * c.d + lane + 32 * e, dv[e], c.add_v);
        }
}

template <class T> void ml_attn_plain_back(ml_cuda_stream *s, const attn_call<T> &c) {
    unsigned queries = ml_cuda_blocks((int64_t)c.n_token * c.n_head, WARPS);
    unsigned keys = ml_cuda_blocks((int64_t)c.n_token * c.n_kv, WARPS);

    if (c.dq)
        plain_back_query<T><<<queries, THREADS, 0, s->stream>>>(c);
    if (c.dk || c.dv_out)
        plain_back_key<T><<<keys, THREADS, 0, s->stream>>>(c);
    ml_cuda_launched(s, "attention backward");
}

template void ml_attn_plain<float>(ml_cuda_stream *, const attn_call<float> &);
template void ml_attn_plain<bf16>(ml_cuda_stream *, const attn_call<bf16> &);
template void ml_attn_plain_back<float>(ml_cuda_stream *, const attn_call<float> &);
template void ml_attn_plain_back<bf16>(ml_cuda_stream *, const attn_call<bf16> &);
